"""What is written in columns is read back: the same words and labels, whatever characters they have."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.data.columns.annotations import Sentences
from longspan.data.columns.kinds import Column, WordLabels, Words
from longspan.data.config import DataConfig
from longspan.data.sources.paths import read_paths
from longspan.machine.printing import unbroken
from longspan.tasks.recommendation.prediction import prediction_line
from longspan.tasks.token_classification.prediction import WordsPrediction


class Settings(DataConfig):
    x_column = "tokens"
    y_column = "labels"
    z_column = "sentences"


COLUMNS: list[Column] = [
    Words("tokens", "x_column"),
    WordLabels("labels", "y_column", unseen=True),
    Sentences("sentences", "z_column"),
]
NASTY = [
    "#",
    "#text",
    "# text",
    "# text = x",
    "#sent_id",
    "#newdoc",
    "# newdoc",
    "-DOCSTART-",
    "1-2",
    '"',
    "_",
    "\ufeffx",
    "a b",
]
BREAKS = ["a\tb", "a\nb", "a\r", "a\u2028b", "a\x85b", "a\x1cb", "\x1b[31m", "a\xa0b", "\ud800x"]
WORDS = st.one_of(st.sampled_from([*NASTY, *BREAKS]), st.text(min_size=1, max_size=4)).filter(
    lambda word: unbroken(word).strip() != ""
)
LABELS = st.sampled_from(["O", "B-PER", "#", "text", "New York", "a\tb"])
SENTENCES = st.lists(st.lists(st.tuples(WORDS, LABELS), min_size=1, max_size=4), min_size=1, max_size=3)


def read(path: Path, text: str) -> list[Any]:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
    rows = list(read_paths([path], COLUMNS, Settings()))
    assert not [row.problem for row in rows if row.problem]
    return [(row.values["tokens"], row.values["labels"], row.values["sentences"]) for row in rows]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(SENTENCES, min_size=1, max_size=3), where=st.sampled_from(["a.txt", "a b\n#c", "# x"]))
def test_predictions_in_columns_are_read_back(tmp_path: Path, documents: list[Any], where: str) -> None:
    written, expected = "", []
    for sentences in documents:
        words, labels = ([pair[part] for sentence in sentences for pair in sentence] for part in (0, 1))
        sizes = [len(sentence) for sentence in sentences]
        written += WordsPrediction(where, tokens=words, labels=labels, sentences=sizes).to_columns() + "\n"
        written += WordsPrediction(where, "broken\nUTF-8").to_columns() + "\n"
        expected.append(([unbroken(word) for word in words], [unbroken(label) for label in labels], sizes))
    found = read(tmp_path / "a.conll", written)
    assert [(tokens, labels, sizes) for tokens, labels, sizes in found] == [
        (tokens, [label.strip() for label in labels], sizes) for tokens, labels, sizes in expected
    ]


@pytest.mark.parametrize("between", ["\t", " "])
@pytest.mark.parametrize("word", ["#", "#text", "#sent_id", "#newdoc", "#global.columns", "##"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_words_that_look_like_comments(tmp_path: Path, between: str, word: str, place: int) -> None:
    words = ["a", "b"]
    words.insert(place, word)
    lines = "".join(f"{each}{between}O\n" for each in words)
    assert read(tmp_path / "a.conll", f"# sent_id = 1\n# text = a b c\n{lines}") == [(words, ["O"] * 3, [3])]


def test_comments_are_none_of_the_words(tmp_path: Path) -> None:
    # Two fields each, as the words have.
    assert read(tmp_path / "a.conll", "# newdoc\n#comment\na O\n\n# newpar\nb O\n# newdoc\nc O\n") == [
        (["a", "b"], ["O", "O"], [1, 1]),
        (["c"], ["O"], [1]),
    ]
    universal = "#newdoc\n#\ttext\t_\tX\n1\ta\t_\tX\n"
    assert read(tmp_path / "a.conllu", universal) == [(["a"], ["X"], [1])]


def test_words_that_all_begin_like_comments(tmp_path: Path) -> None:
    assert read(tmp_path / "a.conll", "#a\tO\n#\tX\n") == [(["#a", "#"], ["O", "X"], [2])]


def test_a_line_of_mind_has_one_impression() -> None:
    line = prediction_line("7\n8\t9", [2, 1])
    assert line == "7 8 9 [2,1]"
    assert line.rpartition(" [")[0] == "7 8 9"
