"""Schemes of labels: recognised, checked and turned into IOB2; scores of spans; windows of long documents."""

import random

import pytest
from seqeval.metrics.v1 import classification_report
from seqeval.scheme import IOB2

from longspan.errors import UserError
from longspan.tasks.token_classification.labels import Scheme, label_names, scheme_of, spans, to_iob2
from longspan.tasks.token_classification.reading import cut
from longspan.tasks.token_classification.scores import token_scores

# The same spans in every scheme: A of two words, A of one right after it, B of three, and one of one word at the end.
SAME: dict[Scheme, list[str]] = {
    "IOB2": ["B-A", "I-A", "B-A", "O", "B-B", "I-B", "I-B", "O", "B-A"],
    "IOB1": ["I-A", "I-A", "B-A", "O", "I-B", "I-B", "I-B", "O", "I-A"],
    "IOBES": ["B-A", "E-A", "S-A", "O", "B-B", "I-B", "E-B", "O", "S-A"],
}


@pytest.mark.parametrize("scheme", SAME)
def test_schemes_are_recognised_and_say_the_same(scheme: Scheme) -> None:
    assert scheme_of([SAME[scheme], ["O"]]) == scheme
    found = to_iob2(SAME[scheme], scheme)
    assert (found.labels, found.broken) == (SAME["IOB2"], [])


def test_other_letters_of_the_same_scheme() -> None:
    bilou = [label.replace("E-", "L-").replace("S-", "U-") for label in SAME["IOBES"]]
    bmes = [label.replace("I-", "M-") for label in SAME["IOBES"]]
    for labels in (bilou, bmes):
        assert scheme_of([labels]) == "IOBES"
        assert to_iob2(labels, "IOBES").labels == SAME["IOB2"]


def test_plain_labels() -> None:
    for labels in (["NOUN", "O", "VERB"], ["a"], ["I-95", "X"]):
        assert scheme_of([labels]) == "plain"
    assert to_iob2(["O", "I-X"], "plain").labels == ["O", "I-X"]
    assert label_names([["b", "a"], ["10", "9"]], "plain") == ["9", "10", "a", "b"]


def test_labels_of_two_schemes_are_refused() -> None:
    with pytest.raises(UserError, match=r"expected labels of one scheme, got 'PER', 'B-PER' and 'O'; mark"):
        scheme_of([["B-PER", "O", "PER"]])


@pytest.mark.parametrize(
    ("labels", "scheme", "broken", "mended"),
    [
        (["O", "I-A", "I-A"], "IOB2", [1], ["O", "B-A", "I-A"]),
        (["B-A", "I-B"], "IOB2", [1], ["B-A", "B-B"]),
        (["B-A", "O"], "IOBES", [1], ["B-A", "O"]),
        (["I-A", "E-A"], "IOBES", [0], ["B-A", "I-A"]),
        (["B-A", "S-A"], "IOBES", [1], ["B-A", "B-A"]),
        (["S-A", "B-A"], "IOBES", [1], ["B-A", "B-A"]),
    ],
)
def test_labels_that_break_their_scheme(
    labels: list[str], scheme: Scheme, broken: list[int], mended: list[str]
) -> None:
    found = to_iob2(labels, scheme)
    assert (found.broken, found.labels) == (broken, mended)


def test_a_model_gives_both_labels_of_every_type() -> None:
    assert label_names([["B-A", "O"], ["I-B", "B-B"]], "IOB2") == ["O", "B-A", "I-A", "B-B", "I-B"]


def test_spans() -> None:
    assert spans(SAME["IOB2"]) == [("A", 0, 2), ("A", 2, 3), ("B", 4, 7), ("A", 8, 9)]
    assert spans(["O", "I-A", "B-B", "I-A"]) == [("B", 2, 3)]


def test_scores_are_those_of_whole_spans() -> None:
    names = ["O", "B-A", "I-A", "B-B", "I-B"]
    gold = [SAME["IOB2"], ["B-B", "O"]]
    given = [["B-A", "I-A", "I-A", "O", "B-B", "I-B", "I-B", "O", "B-B"], ["B-B", "O"]]
    found = token_scores(gold, given, names, plain=False)
    # Right: B in the first sentence and in the second; given: A, B, B and B; there: A, A, B, A and B.
    assert found.precision == pytest.approx(2 / 4)
    assert found.recall == pytest.approx(2 / 5)
    assert found.f1 == pytest.approx(4 / 9)
    assert found.accuracy == pytest.approx(9 / 11)
    assert found.per_type["B"] == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": 0.8, "support": 2}
    assert found.confused == [["B-A", "I-A", 1], ["B-A", "B-B", 1]]
    assert found.confusion[1] == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("seed", range(6))
def test_scores_of_spans_are_those_of_seqeval(seed: int) -> None:
    """Bit for bit, in its strict mode; labels that begin no span are in none."""
    random.seed(seed)
    names = ["O", "B-A", "I-A", "B-B", "I-B", "B-C", "I-C"][: 3 + 2 * (seed % 3)]
    rows = [random.choices(names, k=12) for _ in range(40)]
    gold, given = rows[:20], rows[20:]
    scores = token_scores(gold, given, names, plain=False)
    report = classification_report(gold, given, scheme=IOB2, output_dict=True, zero_division=0)
    keys = {"precision": "precision", "recall": "recall", "f1": "f1-score", "support": "support"}
    expected = {kind: {key: float(row[name]) for key, name in keys.items()} for kind, row in report.items()}
    micro = expected["micro avg"]
    assert (scores.precision, scores.recall, scores.f1) == (micro["precision"], micro["recall"], micro["f1"])
    assert scores.per_type == {kind: row for kind, row in expected.items() if not kind.endswith(" avg")}


def test_scores_of_plain_labels_count_words() -> None:
    found = token_scores([["a", "b", "new"]], [["a", "a", "b"]], ["a", "b"], plain=True)
    assert found.f1 == found.precision == found.recall == found.accuracy == pytest.approx(1 / 3)
    assert found.per_type["new"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1}
    with pytest.raises(UserError, match="at least one word"):
        token_scores([], [], ["a"], plain=True)
    nothing = token_scores([["O"]], [["O"]], ["O", "B-A", "I-A"], plain=False)
    assert (nothing.f1, nothing.accuracy) == (0.0, 1.0)


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 64, 0])
def test_windows_label_each_word_once_and_hold_the_limit(limit: int) -> None:
    random.seed(limit)
    for words in (0, 1, 7, 40):
        sizes = [random.randint(1, min(4, limit or 4)) for _ in range(words)]
        windows = cut(sizes, limit)
        labelled = [word for window in windows for word in range(window.first, window.last)]
        assert labelled == list(range(words))
        for window in windows:
            assert window.start <= window.first <= window.last <= window.end
            assert not limit or sum(sizes[window.start : window.end]) <= limit
        if limit == 8 and words == 40:
            # Between two windows there is context on both sides.
            assert any(window.start < window.first for window in windows[1:])
            assert any(window.last < window.end for window in windows[:-1])


@pytest.mark.parametrize(
    "written", ["B_PER I_PER B_PER", "PER-B PER-I PER-B", "PER_B PER_I PER_B", "B-PER I-PER B-PER"]
)
def test_letters_may_be_joined_otherwise(written: str) -> None:
    """The same spans, however their letter is written; scores are seqeval's."""
    labels = ["O", *written.split(), "O"]
    assert scheme_of([labels]) == "IOB2"
    assert to_iob2(labels, "IOB2").labels == ["O", "B-PER", "I-PER", "B-PER", "O"]
    assert to_iob2(labels, "IOB2").broken == []
    assert label_names([to_iob2(labels, "IOB2").labels], "IOB2") == ["O", "B-PER", "I-PER"]


def test_letters_alone_are_spans_of_one_type() -> None:
    assert scheme_of([["B", "I", "O", "B"]]) == "IOB2"
    assert to_iob2(["B", "I", "O", "B"], "IOB2").labels == ["B-span", "I-span", "O", "B-span"]


def test_types_without_letters_are_runs_of_words() -> None:
    labels = ["PER", "PER", "O", "LOC", "PER"]
    assert scheme_of([labels, ["O"] * 9]) == "IO"
    assert to_iob2(labels, "IO").labels == ["B-PER", "I-PER", "O", "B-LOC", "B-PER"]
    # Parts of speech may have an O, too, as that of pronouns.
    assert scheme_of([["N", "V", "O", "^", "N"]]) == "plain"


def test_tags_without_an_outside_stay_plain() -> None:
    assert scheme_of([["NOUN", "VERB", "X_B"]]) == "plain"
    assert scheme_of([["B_A", "I_A"]]) == "plain"
