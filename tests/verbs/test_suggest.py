"""Documents to label next: uncertain, and unlike each other."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decisive_words import write_run

from longspan import UserError, cli, suggest
from longspan.verbs import suggest as suggesting
from longspan.verbs.runs import load_run
from longspan.verbs.suggest import diverse, word_vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is least certain where one of about twenty words is "good"."""
    return write_run(tmp_path_factory.mktemp("runs") / "mine", ["no", "yes"], "good", "yes", "good bad film")


def pool() -> list[str]:
    unsure = [f"good {' '.join(f'w{number}x{word}' for word in range(18))} film" for number in range(5)]
    copies = [f"{unsure[0].upper()}  ", f"{unsure[0]} bad", f"bad {unsure[0]}"]
    return ["good film", "bad film", *unsure, *copies, "", "good"]


def test_uncertain_documents_come_first_and_copies_last(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = suggest(load_run(folder), {"text": pool()})
    places = [int(one.where.split()[1]) for one in found]
    # Of the first of the unsure ones and its near copies, one; a copy in capitals never.
    assert {*places} == {1, 2, 3, 4, 5, 6, 7, 9, 10, 12}
    assert {*places[-2:]} < {3, 9, 10}
    assert places.index(7) < places.index(2)
    assert all(0 <= one.uncertainty <= 1 for one in found)
    assert "1 documents cannot be read" in capsys.readouterr().err


def test_memory_is_limited_and_the_most_uncertain_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggesting, "_LEAST", 3)
    monkeypatch.setattr(suggesting, "_TIMES", 1)
    few = suggest(load_run(folder), {"text": pool()[:7]}, 3)
    assert {int(one.where.split()[1]) for one in few} <= {3, 4, 5, 6, 7}


def test_the_command_writes_a_table_that_serve_reads(folder: Path, tmp_path: Path, capsys: Any) -> None:
    table, output = tmp_path / "pool.jsonl", tmp_path / "next.csv"
    table.write_text('{"text": "good, \\"film\\"\\nbad"}\n{"text": "bad"}\n', encoding="utf-8")
    assert cli.main(["suggest", str(folder), str(table), "--output", str(output)]) == 0
    assert f"longspan serve {folder} --label {output}" in capsys.readouterr().out
    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["text"] for row in rows} == {'good, "film"\nbad', "bad"}
    assert rows[0].keys() == {"rank", "where", "predicted", "uncertainty", "text", "label"}
    assert cli.main(["suggest", str(folder), str(table), "--output", str(output)]) == 2
    assert "add --overwrite" in capsys.readouterr().err
    # What was labelled on the page is not suggested again.
    labelled = folder.with_name("mine-corrections.jsonl")
    labelled.write_text('{"text": "BAD", "label": "no"}\n', encoding="utf-8")
    found = suggest(folder, [table])
    # Its columns are those of training, not those of the pool.
    other = tmp_path / "other.jsonl"
    other.write_text('{"body": "bad"}\n{"body": "good film"}\n', encoding="utf-8")
    renamed = suggest(folder, [other], overrides=["data.text_column=body"])
    # A file of another name, and one of training.
    elsewhere = labelled.rename(tmp_path / "labels.jsonl")
    arguments = ["suggest", str(folder), str(table), "--output", str(output), "--overwrite", "--json"]
    assert cli.main([*arguments, f"--corrections={elsewhere}"]) == 0
    assert json.loads(capsys.readouterr().out)["suggested"] == 1
    for corrections, number in ((str(elsewhere), 1), ("gone.jsonl", 2)):
        run = load_run(folder)
        data = replace(run.recipe.data, corrections=corrections)
        assert len(suggest(replace(run, recipe=replace(run.recipe, data=data)), [table])) == number
    assert "gone.jsonl, the data.corrections of this run, is missing" in capsys.readouterr().err
    assert [len(found), len(renamed)] == [1, 1]
    with pytest.raises(UserError, match="at least one document"):
        suggest(folder, [table], 0)


def test_diverse_examples() -> None:
    vectors = word_vectors(["red green blue", "red green blue", "one two three", "sun moon stars"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    uncertainties = np.array([1.0, 0.99, 0.5, 0.4])
    assert diverse(uncertainties, ["a"] * 4, vectors, 3) == [0, 2, 3]
    assert diverse(uncertainties, ["a"] * 4, vectors, 10) == [0, 2, 3, 1]
    # Labels take turns.
    assert diverse(uncertainties, ["a", "a", "a", "b"], vectors, 3) == [0, 3, 2]
