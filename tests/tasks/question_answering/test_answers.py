"""From logits to answers: the best spans, their places and probabilities, windows, scores, thresholds, a baseline."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from questions import write_questions

from longspan import recipes
from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.tasks.question_answering import answers
from longspan.tasks.question_answering.baselines.sentence import Sentence
from longspan.tasks.question_answering.scores import answer_scores, best_threshold, exact_match, f1, normalised
from longspan.tasks.question_answering.windows import Reading


@pytest.mark.parametrize(("length", "longest"), [(7, 3), (5, 9), (1, 1), (40, 4)])
def test_best_spans_are_those_of_all(length: int, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = torch.randn(length), torch.randn(length)
    every = sorted(
        (
            (float(start[i] + end[j]), i, j)
            for i, j in itertools.product(range(length), repeat=2)
            if i <= j < i + longest
        ),
        reverse=True,
    )
    for at_once in (1 << 22, 8):
        monkeypatch.setattr(answers, "_AT_ONCE", at_once)
        found = answers.best_spans(start, end, longest, 6)
        assert [span[1:] for span in found] == [span[1:] for span in every[:6]]
        np.testing.assert_allclose([span[0] for span in found], [span[0] for span in every[:6]], rtol=1e-6)
    assert answers.best_spans(start[:0], end[:0], longest) == []


def reading(limit: int = 0, overlap: int = 2) -> Reading:
    tokenizer = build_tokenizer(DataConfig(tokens="words", vocab_size=50), ["a b c d e f g ? , ."], end=True)
    return Reading(tokenizer, limit, overlap)


def read(made: Reading, text: str, answer: str = "", question: str = "a b ?") -> list[dict[str, Any]]:
    known = {"text": [answer] * bool(answer), "start": [text.find(answer)] * bool(answer)}
    batch: dict[str, Any] = {
        "question": [question],
        "context": [text],
        "where": ["x"],
        "id": [None],
        "answers": [known],
    }
    (rows,) = made.rows(batch)
    assert isinstance(rows, list)
    return rows


def test_a_document_is_one_row_without_a_limit() -> None:
    text = "a, b c (d e) f g." * 50
    (row,) = read(reading(), text, "(d e)")
    tokenizer = reading().tokenizer
    end = tokenizer.eos_token_id
    assert row["input_ids"][[0, 4]].tolist() == [end, end]
    assert row["begin"] == 5
    assert row["length"] == 5 + row["tokens"] == len(row["input_ids"])
    assert row["token_type_ids"].tolist() == [0] * 5 + [1] * row["tokens"]
    offsets = row["offsets"].reshape(-1, 2)
    first, last = (place - row["begin"] for place in row["labels"])
    assert text[offsets[first, 0] : offsets[last, 1]] == "(d e)"
    assert read(reading(), text)[0]["labels"] == [0, 0]


@pytest.mark.parametrize("answer", ["a", "g f e d", "c", "b c d e f"])
def test_windows_cover_the_document_and_one_has_the_answer(answer: str) -> None:
    text = "a b c d e f g g f e d c b"
    rows = read(reading(12), text, answer)
    assert all(row["length"] <= 12 for row in rows)
    covered = {place for row in rows for place in row["offsets"].reshape(-1, 2)[:, 0].tolist()}
    assert covered == set(range(0, 25, 2))
    found = set()
    for row in rows:
        offsets, labels = row["offsets"].reshape(-1, 2), row["labels"]
        if labels != [0, 0]:
            start, end = int(offsets[labels[0] - row["begin"], 0]), int(offsets[labels[1] - row["begin"], 1])
            found.add(text[start:end])
            assert row["text"][start - row["shift"] : end - row["shift"]] == answer
    assert found == {answer}


def test_a_pretrained_tokenizer_keeps_its_own_special_tokens() -> None:
    from tokenizers import processors

    made = reading()
    made.tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    cls, sep = made.tokenizer.cls_token_id, made.tokenizer.sep_token_id
    made.tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    rows = read(made, "c d e", "e")
    ids = rows[0]["input_ids"].tolist()
    assert [ids[0], ids[4], ids[-1]] == [cls, sep, sep]
    assert rows[0]["labels"] == [7, 7]


def test_windows_answers_are_compared_by_their_odds_against_none() -> None:
    rows = read(reading(11), "a b c d e f g f", "e")
    assert len(rows) > 1
    logits = [torch.full((row["length"], 2), -9.0) for row in rows]
    # In the first window a large logit, but a larger one for no answer; in the last a smaller one against none.
    logits[0][rows[0]["begin"] + 1], logits[0][0] = 5.0, 6.0
    logits[-1][rows[-1]["begin"] + 2], logits[-1][0] = 2.0, 0.0
    (found,) = answers.answered(rows, torch.cat(logits), 3)
    place = int(rows[-1]["offsets"].reshape(-1, 2)[2, 0])
    best = found.spans[0]
    assert (best.start, best.end, best.score) == (place, place + 1, 4.0)
    shares, none = found.probabilities(0.0)
    assert sum(shares) + none == pytest.approx(1)
    assert shares[0] / none == pytest.approx(math.exp(4))
    assert found.answer(None) == found.answer(3.9) == best.text
    assert found.answer(4.1) == ""
    assert sum(found.probabilities(None)[0]) == pytest.approx(1)
    assert len({(span.start, span.end) for span in found.spans}) == len(found.spans)


def test_normalisation_is_the_official_one() -> None:
    assert normalised(" The  “quick”, brown-Fox: an A. ") == "“quick” brownfox"
    assert exact_match("the U.S. army", ["Army of US", "us Army"])
    assert not exact_match("", ["x"])
    assert exact_match("", [])
    assert exact_match("the", [])
    assert f1("big red dog", ["red dogs", "a red dog"]) == pytest.approx(0.8)
    assert f1("red red", ["red"]) == pytest.approx(2 / 3)
    assert f1("x", []) == 0
    assert f1("x", ["the", "x"]) == 1


def test_scores_by_kind() -> None:
    found = answer_scores(["x", "", "y z", ""], [["x"], [], ["y"], ["w"]], loss=1.0, threshold=0.5)
    assert found.exact_match == 0.5
    assert found.f1 == pytest.approx((1 + 1 + 2 / 3) / 4)
    assert found.kinds["answer"] == {"questions": 3, "exact_match": pytest.approx(1 / 3), "f1": pytest.approx(5 / 9)}
    assert found.kinds["no answer"] == {"questions": 1, "exact_match": 1.0, "f1": 1.0}
    assert answer_scores(["x"], [["x"]]).kinds == {}
    with pytest.raises(UserError, match="at least one question"):
        answer_scores([], [])


def test_the_threshold_is_the_best_of_all() -> None:
    drawn = np.random.default_rng(0)
    for _ in range(20):
        scores = drawn.integers(-4, 5, 12).astype(float).tolist()
        given = drawn.choice(["x", "y"], 12).tolist()
        expected = [[] if none else ["x"] for none in drawn.random(12) < 0.4]

        def mean(cut: float, rows: list[tuple[float, str, list[str]]]) -> float:
            return sum(f1(one if value >= cut else "", right) for value, one, right in rows) / 12

        rows = list(zip(scores, given, expected, strict=True))
        found = best_threshold(scores, given, expected)
        assert mean(found, rows) == pytest.approx(max(mean(cut, rows) for cut in np.arange(-6, 7, 0.5)))
    assert best_threshold([], [], []) == 0


@pytest.mark.parametrize("unanswered", [0.0, 0.4])
def test_the_baseline_finds_the_words_next_to_the_questions(tmp_path: Path, unanswered: float) -> None:
    data = write_questions(tmp_path / "questions.jsonl", 120, unanswered=unanswered)
    recipe = recipes.load("question-answering", [f"data.path={data}", "data.test_fraction=0.2"])
    fitted = Sentence().fit(recipe)
    assert fitted.chosen["words"] == 1
    assert fitted.scores["test"].f1 == 1
    assert (fitted.chosen["threshold"] is None) == (not unanswered)
