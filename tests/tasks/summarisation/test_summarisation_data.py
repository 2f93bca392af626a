"""Documents, questions and summaries: what is read, and what is refused or counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from chats import chat, write_chats, write_meetings

from longspan.data.sources.loading import load
from longspan.errors import UserError
from longspan.tasks.summarisation.columns import columns, each_question
from longspan.tasks.summarisation.options import SummaryData
from longspan.tasks.summarisation.reading import SummaryProcessor

GOOD = {"document": "One line.\nAnother line.", "summary": "Lines."}


def rows(path: Path, **settings: Any) -> Any:
    config = SummaryData(path=str(path), validation_fraction=0.0, **settings)
    return load(config, columns(config))


def written(tmp_path: Path, *objects: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects), encoding="utf-8")
    return path


def test_one_summary_or_several_questions_in_a_row(tmp_path: Path) -> None:
    listed = {"document": ["A: one", {"speaker": "B", "content": "two\nlines"}], "summary": "S.", "question": "Q?"}
    several = {"document": "Text.", "questions": [{"question": "A?", "summary": "a"}, {"query": "B?", "answer": "b"}]}
    found = rows(written(tmp_path, GOOD, listed, several, {**GOOD, "document": "Other.", "question": " "}))
    split = found.splits["train"]
    assert split["document"][:] == [GOOD["document"], "A: one\nB: two lines", "Text.", "Other."]
    assert split["questions"][:] == [None, ["Q?"], ["A?", "B?"], None]
    assert split["summaries"][:] == [["Lines."], ["S."], ["a", "b"], ["Lines."]]
    each = each_question(split)
    assert each["questions"][:] == [None, ["Q?"], ["A?"], ["B?"], None]
    assert each["summaries"][:] == [["Lines."], ["S."], ["a"], ["b"], ["Lines."]]
    assert each["where"][2:4] == ["data.jsonl, line 3, question 1", "data.jsonl, line 3, question 2"]
    table = tmp_path / "data.csv"
    table.write_text("text,asked,answer\nA document.,Which?,This.\n", encoding="utf-8")
    named = {"document_column": "text", "question_column": "asked", "summary_column": "answer"}
    assert rows(table, **named).splits["train"]["questions"][:] == [["Which?"]]


def test_folders_of_meetings(tmp_path: Path) -> None:
    found = rows(write_meetings(tmp_path / "meetings", {"train": 2, "val": 1, "test": 1})).splits
    assert {name: len(split) for name, split in found.items()} == {"train": 2, "validation": 1, "test": 1}
    made = chat(500)
    row = found["train"][0]
    turn = made["document"][1]
    assert row["document"].splitlines()[1] == f"{turn['speaker']}: {turn['content']}"
    assert row["questions"] == ["Summarize the meeting.", *(each["question"] for each in made["questions"])]
    assert row["summaries"] == ["They decided on many things.", *(each["summary"] for each in made["questions"])]
    assert each_question(found["train"])["where"][1] == "train/M0.json, question 2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": None}, "no document in 1 row"),
        ({"document": "  "}, "no document in 1 row"),
        ({"document": []}, "no document in 1 row"),
        ({"document": ["one", 2]}, r"no document \(expected text, got a number among its items\)"),
        ({"summary": ""}, "an empty summary in 1 row"),
        ({"summary": None}, "no summaries in 1 row"),
        ({"summary": 5}, "no summaries"),
        ({"question": 5}, "no questions"),
        ({"summary": None, "questions": [{"question": "A?"}]}, "no summaries"),
        ({"summary": None, "questions": [{"question": "A?", "summary": " "}]}, "an empty summary"),
        ({"questions": [{"question": "A?"}, {"question": "B?"}]}, r"no summary \(2 questions with summaries for 1\)"),
    ],
)
def test_bad_rows_are_one_sentence_or_counted(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    bad = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = written(tmp_path, GOOD, bad)
    with pytest.raises(UserError, match=message) as caught:
        rows(path)
    assert "\n" not in str(caught.value)
    found = rows(path, skip_bad_rows=True)
    assert len(found.splits["train"]) == 1
    assert sum(found.skipped.values()) == 1


def test_a_question_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with pytest.raises(UserError, match=r"expected a column 'query' in data.jsonl, got 'document', 'summary'"):
        rows(path, question_column="query")
    some = written(tmp_path, {**GOOD, "query": "Q?"}, GOOD)
    with pytest.raises(UserError, match="no questions in 1 row"):
        rows(some, question_column="query")
    asked = rows(written(tmp_path, {**GOOD, "query": "Q?"}), question_column="query").splits["train"]
    assert asked["questions"][:] == [["Q?"]]


def test_the_question_comes_first_behind_a_token_that_separates_it(tmp_path: Path) -> None:
    data = SummaryData(path=str(write_chats(tmp_path / "chats.jsonl", 3)), vocab_size=300, validation_fraction=0.0)
    processor = SummaryProcessor.learned(load(data, columns(data)).splits["train"], data)
    tokenizer, end = processor.tokenizer, processor.tokenizer.eos_token_id
    question, document = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Who?", "A text."))
    assert processor.source("A text.", "Who?", data) == ([*question, end, *document, end], 0)
    assert processor.source("A text.", "", data) == ([*document, end], 0)
    assert tokenizer("Who?", "A text.")["input_ids"] == [*question, end, *document, end]
    short = SummaryData(max_length=len(question) + 5)
    assert processor.source("A text." * 20, "Who?", short)[0] == [*question, end, *document[:3], end]
    (encoded,) = processor.encode({"document": ["A text."], "questions": [None], "summaries": [["A."]]}, data)
    assert encoded.streams["labels"] == tokenizer("A.")["input_ids"]
