"""Documents in parts with questions: what is read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from talks import talk, write_meetings, write_talks

from longspan.data.sources.loading import load
from longspan.errors import UserError
from longspan.tasks.evidence.options import EvidenceData
from longspan.tasks.evidence.task import Evidence


def rows(path: Path, **settings: Any) -> Any:
    config = EvidenceData(path=str(path), validation_fraction=0.0, **settings)
    return load(config, Evidence("evidence").columns(config))


def written(tmp_path: Path, *objects: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects), encoding="utf-8")
    return path


PARTS = ["one", "two", "three"]
GOOD = {"parts": PARTS, "question": "Which?", "evidence": [1]}


def test_one_question_or_several_in_a_row(tmp_path: Path) -> None:
    several = {
        "parts": PARTS,
        "questions": [{"question": "A?", "evidence": [2, 0, 2]}, {"question": "B?", "evidence": []}],
    }
    found = rows(written(tmp_path, GOOD, several)).splits["train"]
    assert found["questions"][:] == [["Which?"], ["A?", "B?"]]
    assert found["evidence"][:] == [[[1]], [[0, 2], []]]
    table = tmp_path / "data.csv"
    table.write_text('parts,question,evidence\n"[""one"", ""two""]",Which?,"[1]"\n', encoding="utf-8")
    assert rows(table).splits["train"][0]["evidence"] == [[1]]
    renamed = written(tmp_path, {"sentences": PARTS, "q": "Which?", "gold": [1]})
    names = {"parts_column": "sentences", "question_column": "q", "evidence_column": "gold"}
    assert rows(renamed, **names).splits["train"]["questions"][:] == [["Which?"]]


def test_folders_of_meetings(tmp_path: Path) -> None:
    found = rows(write_meetings(tmp_path / "meetings", {"train": 2, "val": 1, "test": 1})).splits
    assert {name: len(split) for name, split in found.items()} == {"train": 2, "validation": 1, "test": 1}
    expected = talk(500)
    row = found["train"][0]
    assert row["parts"][1] == f"Ann: {expected['parts'][1]}"
    assert row["questions"] == [each["question"] for each in expected["questions"]]
    assert row["evidence"] == [each["evidence"] for each in expected["questions"]]
    assert row["where"] == "train/M0.json"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": None}, "no parts in 1 row"),
        ({"parts": []}, "an empty document"),
        ({"parts": ["one", " "]}, r"an empty part \(number 1 of 2"),
        ({"parts": "one"}, r"no parts \(expected a list of texts, got text of 3 characters\)"),
        ({"parts": ["one", 2]}, r"no parts \(expected a list of texts, got a number among its items\)"),
        ({"evidence": [3]}, r"evidence outside the document \(question 1 names part 3 of 0 to 2\)"),
        ({"evidence": [-1]}, "evidence outside the document"),
        ({"evidence": [1.5]}, "no evidence"),
        ({"evidence": [True]}, "no evidence"),
        ({"evidence": 1}, "no evidence"),
        ({"evidence": None}, "no evidence"),
        ({"question": "  "}, "an empty question"),
        ({"question": None}, "no questions"),
        ({"question": 5}, "no questions"),
        ({"question": None, "evidence": None, "questions": []}, "no questions"),
        ({"question": None, "evidence": None, "questions": [{"question": "A?"}]}, "no evidence"),
        ({"question": None, "questions": [{"question": "A?"}, {"question": "B?"}]}, r"no evidence \(2 questions"),
        ({"evidence": None, "questions": [{"relevant_text_span": [["0", "9" * 30]]}]}, "no evidence|outside"),
        ({"evidence": None, "questions": [{"relevant_text_span": [["2", "1"]]}]}, "evidence outside the document"),
    ],
)
def test_bad_rows_are_one_sentence_or_counted(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    bad = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = written(tmp_path, GOOD, bad)
    with pytest.raises(UserError, match=message):
        rows(path)
    found = rows(path, skip_bad_rows=True)
    assert len(found.splits["train"]) == 1
    assert sum(found.skipped.values()) == 1


def test_what_has_no_documents_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a column 'parts' in data.jsonl, got 'text'"):
        rows(written(tmp_path, {"text": "x"}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        rows(tmp_path / "empty")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.json").write_text("[1", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.json: not a JSON object"):
        rows(tmp_path / "broken")
    with pytest.raises(UserError, match="read in full, got 512"):
        EvidenceData(max_length=512)
    assert len(rows(write_talks(tmp_path / "talks.jsonl", 3)).splits["train"]) == 3
