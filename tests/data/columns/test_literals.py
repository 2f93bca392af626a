"""Lists that Python, pandas and NumPy wrote as text are read as lists, or refused; never as words with brackets."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longspan import UserError
from longspan.data.columns.kinds import Labels, Numbers, Words
from longspan.data.columns.literals import literal
from longspan.data.columns.spans import Spans
from longspan.data.columns.values import BadCell

HERE = Path()


def written(cell: Any) -> str:
    """What `DataFrame.to_csv` writes for a cell."""
    file = io.StringIO()
    pd.DataFrame({"cell": [cell]}).to_csv(file, index=False)
    file.seek(0)
    return str(pd.read_csv(file)["cell"][0])


@pytest.mark.parametrize(
    "cell",
    [
        ["bug", "ui"],
        ["it's", 'a "quoted" one', "a,b", "tab\tline", "ünï"],
        np.array(["bug", "ui"]),
        np.array(["it's", "two words"]),
        list(np.array(["bug", "ui"])),
        np.array([f"label{number}" for number in range(60)]),
    ],
    ids=str,
)
def test_lists_of_texts_survive_a_table(cell: Any) -> None:
    text = written(cell)
    assert Labels("labels", "label_column").parse(text, HERE) == list(cell)
    assert literal(text) == list(cell)


def test_words_survive_a_table() -> None:
    words = ["EU", "rejects", "German", "call", "."]
    assert Words("tokens", "text_column").parse(written(words), HERE) == words
    assert Words("tokens", "text_column").parse(written(np.array(words)), HERE) == words


@pytest.mark.parametrize("cell", [[1.5, 2.0], np.array([1.5, 2.0, -3e-5]), np.arange(4)], ids=str)
def test_numbers_survive_a_table(cell: Any) -> None:
    assert Numbers("values", "values_column").parse(written(cell), HERE) == pytest.approx(list(cell))


def test_answers_survive_a_table() -> None:
    cell = {"text": np.array(["Denver Broncos"], dtype=object), "answer_start": np.array([177], dtype=np.int32)}
    wanted = {"text": ["Denver Broncos"], "start": [177]}
    for text in (written(cell), written({"text": ["Denver Broncos"], "answer_start": [177]})):
        assert Spans("answers", "answers_column").parse(text, HERE) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "['bug', 'ui'",
        "['a', 'b' 'c']",
        # NumPy leaves out what is in the middle.
        written(np.array([f"label{number}" for number in range(2000)])),
        "[bug, ui]",
        "['a'] ['b']",
    ],
)
def test_what_looks_like_a_list_is_refused(text: str) -> None:
    with pytest.raises(BadCell, match="not a readable list"):
        Labels("labels", "label_column").parse(text, HERE)


@pytest.mark.parametrize("text", ["__import__('os')", "[__import__('os')]", "[" * 100_000, "[b'x']", "(see page 3)"])
def test_other_texts_are_no_lists_and_nothing_is_executed(text: str) -> None:
    assert literal(text) is None


def test_training_on_a_table_that_pandas_wrote(tmp_path: Path) -> None:
    """Labels of a list column are those of the list, and a table of unreadable lists is an error."""
    from longspan.tasks import load

    task: Any = load("multi_label_classification")
    rows = [{"text": f"text {number}", "labels": ["bug", "ui"] if number % 2 else ["ui"]} for number in range(20)]
    for frame in (pd.DataFrame(rows), pd.DataFrame([{**row, "labels": np.array(row["labels"])} for row in rows])):
        frame.to_csv(tmp_path / "rows.csv", index=False)
        data = task.data_config(path=str(tmp_path / "rows.csv"), label_column="labels", validation_fraction=0.5)
        for given in (data, task.reading(data, pd.read_csv(tmp_path / "rows.csv"))):
            labels = {label for row in task.splits(given).splits["train"]["labels"][:] for label in row}
            assert labels == {"bug", "ui"}
    pd.DataFrame({"text": ["a", "b"], "labels": ["['bug' ... 'ui']"] * 2}).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(UserError, match="not a readable list"):
        task.splits(task.data_config(path=str(tmp_path / "rows.csv"), label_column="labels"))
