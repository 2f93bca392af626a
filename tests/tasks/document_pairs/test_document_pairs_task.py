"""Pairs of documents, through the verbs and the command line."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from encoders import make_encoder
from transformers import BertConfig

from longspan import TrainedRun, UserError, cli, evaluate, predict, recipes, train
from longspan.data.batches.encoding import lengths
from longspan.testing import check_task
from longspan.training.lengths import LengthTrainer
from longspan.verbs.run_folders import RunFolder, arguments_of
from longspan.verbs.runs import load_run

SMALL = ["data.tokens=words", "data.vocab_size=100", "model.dim=16", "model.heads=2", "model.depth=1"]
QUICK = ["training.per_device_train_batch_size=8", "training.learning_rate=0.01", "model.dropout=0.0"]
QUICK += ["training.max_minutes=0", "training.min_steps=0", "training.num_train_epochs=12", "model.pooling=attention"]
ANIMALS = {"cat": "purr meow whisker", "dog": "bark wag fetch", "cow": "moo graze milk"}


def rows(each: int = 60) -> list[dict[str, str]]:
    """Pairs of documents of 3 to 20 words about animals, which are the same in half of the pairs."""
    random, found = np.random.default_rng(0), []
    for number in range(3 * each):
        names = list(ANIMALS)
        one = names[number % 3]
        other = one if number // 3 % 2 else names[(number + 1 + number // 6 % 2) % 3]
        texts = []
        for name in (one, other):
            words = [f"w{random.integers(12)}" for _ in range(random.integers(0, 18))]
            texts.append(" ".join([*words, *random.permutation(ANIMALS[name].split())]))
        found.append({"first": texts[0], "second": texts[1], "label": "same" if one == other else "different"})
    return found


def write(path: Path, given: Sequence[Mapping[str, str]] = (), names: Mapping[str, str] | None = None) -> Path:
    """Write pairs to a table, perhaps with columns of other `names`."""
    table = [{(names or {}).get(key, key): value for key, value in row.items()} for row in given or rows()]
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(table)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(table), path)
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pairs") / "pairs.csv")


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / "run"
    given = [f"data.path={pairs}", *SMALL, *QUICK, "data.test_fraction=0.2", "data.max_length=30"]
    return train("pairs", given, run=folder, progress=False)


@pytest.mark.slow
def test_it_keeps_the_promises(pairs: Path) -> None:
    check_task("document_pairs", pairs, [*SMALL, "model.dropout=0.1"])


@pytest.mark.slow
def test_it_learns_whether_documents_are_about_the_same(run: TrainedRun) -> None:
    # Half of the pairs are; no document says by itself which.
    assert run.scores["test"].accuracy > 0.85
    assert run.details["labels"] == ["different", "same"]
    same = {"first": "w1 purr meow whisker", "second": "whisker w3 meow purr"}
    found = run.predict([same, {"first": "moo", "second": "fetch wag"}])
    assert [one.label for one in found] == ["same", "different"]
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)


@pytest.mark.slow
def test_evaluations_draw_the_confusion_matrix(run: TrainedRun, pairs: Path) -> None:
    found = evaluate(run.folder, split="test")
    assert found.scores.accuracy == pytest.approx(run.scores["test"].accuracy)
    assert {path.name for path in Path(found.folder).glob("*.png")} == {"confusion.png", "calibration.png"}
    table = [line.split() for line in Path(run.folder, "README.md").read_text().splitlines() if "median length" in line]
    assert table
    again = evaluate(run.folder, data=rows()[:20])
    assert again.details["truncation"]["documents"] == 20


@pytest.mark.slow
def test_all_sources_are_read_alike(run: TrainedRun, tmp_path: Path) -> None:
    some = [{key: row[key] for key in ("first", "second")} for row in rows()[:6]]
    expected = [one.label for one in run.predict(some)]
    columns = {key: [row[key] for row in some] for key in ("first", "second")}
    for given in (columns, pd.DataFrame(some), Dataset.from_list(some), iter(some)):
        assert [one.label for one in run.predict(given)] == expected
    for kind in ("csv", "tsv", "jsonl", "parquet"):
        found = list(predict(run.folder, write(tmp_path / f"some.{kind}", some)))
        assert [one.label for one in found] == expected
        assert found[2].where == f"some.{kind}, row 3" or kind == "jsonl"
    renamed = write(tmp_path / "renamed.csv", some, {"first": "question", "second": "answer"})
    given = ["data.first_column=question", "data.second_column=answer"]
    assert [one.label for one in predict(run.folder, renamed, overrides=given)] == expected
    found = predict(run.folder, renamed, overrides=given[1:], text_column="question")
    assert [one.label for one in found] == expected


@pytest.mark.slow
def test_training_on_data_in_memory_and_with_columns_of_other_names(tmp_path: Path) -> None:
    given = [*SMALL, *QUICK, "training.num_train_epochs=1"]
    names = {"first": "claim", "second": "source", "label": "verdict"}
    settings = [f"data.{key}_column={value}" for key, value in names.items()]
    table = write(tmp_path / "renamed.jsonl", names=names)
    scores = [
        train("pairs", given, run=tmp_path / "memory", data=rows(), progress=False).scores,
        train("pairs", [*given, f"data.path={table}", *settings], run=tmp_path / "file", progress=False).scores,
    ]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_each_document_is_cut_and_predictions_report_it(run: TrainedRun, tmp_path: Path) -> None:
    words = " ".join(f"w{number % 12}" for number in range(40))
    found = run.predict([{"first": words, "second": words}, {"first": "moo", "second": words}, rows()[0]])
    assert [(one.tokens_read, one.tokens_total) for one in found] == [(60, 80), (31, 41), (None, None)]
    long = [{**row, "second": f"{words} {row['second']}"} for row in rows()]
    given = [f"data.path={write(tmp_path / 'long.csv', long)}", *SMALL, *QUICK, "data.max_length=8"]
    recipe = recipes.load("pairs", given)
    data = recipe.task.prepare(recipe).data["train"]
    assert data["cut_documents"] == data["documents"]
    read = lengths(recipe.task.prepare(recipe).splits["train"])
    assert read.shape == (data["documents"], 2)
    assert read.max() == 8
    assert data["tokens"] - data["removed_tokens"] == read.sum()


def test_batches_have_documents_of_similar_lengths_on_both_sides(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    given = [
        {"first": "a " * random.integers(1, 200), "second": "b " * random.integers(1, 200), "label": "xy"[number % 2]}
        for number in range(600)
    ]
    settings = [f"data.path={write(tmp_path / 'lengths.csv', given)}", *SMALL, "training.batch_tokens=4000"]
    recipe = recipes.load("pairs", settings)
    prepared = recipe.task.prepare(recipe)
    model = recipe.task.build_model(recipe, prepared)
    arguments = arguments_of(recipe, RunFolder(tmp_path / "run", "new"), False)
    trainer = recipe.task.make_trainer(recipe, model, arguments, prepared)
    assert isinstance(trainer, LengthTrainer)
    # In random order, nearly half would be padding.
    assert trainer.padding_fraction() < 0.3
    assert max(trainer.batch_positions(0)) <= 4000
    batch = next(iter(trainer.get_train_dataloader()))
    assert {"input_ids", "attention_mask", "second_ids", "second_mask", "labels"} == batch.keys()
    assert not trainer.per_token_columns()
    assert (
        trainer.scoring_sizes(prepared.splits["validation"]).tolist()
        == lengths(prepared.splits["validation"]).sum(1).tolist()
    )


@pytest.mark.slow
def test_a_pair_without_a_document_is_a_bad_row(run: TrainedRun, tmp_path: Path) -> None:
    given = rows()
    given[4]["second"], given[9]["first"] = " ", ""
    path = write(tmp_path / "bad.csv", given)
    settings = [f"data.path={path}", *SMALL, *QUICK, "training.num_train_epochs=1"]
    with pytest.raises(
        UserError, match=r"no second document in 1 row \(first: bad\.csv, row 5\); .*skip_bad_rows=true"
    ):
        train("pairs", settings, run=tmp_path / "stops", progress=False)
    found = train("pairs", [*settings, "data.skip_bad_rows=true"], run=tmp_path / "skips", progress=False)
    assert found.data["skipped"] == {"no second document": 1, "no first document": 1}
    told = list(predict(run.folder, path))
    assert [told[4].error, told[9].error] == ["no second document", "no first document"]
    assert [one.error for one in run.predict([{"first": "moo", "second": ""}])] == ["no second document"]


def test_rare_classes_may_weigh_as_much_as_frequent_ones(pairs: Path) -> None:
    given = [f"data.path={pairs}", *SMALL, "data.class_weights=balanced"]
    recipe = recipes.load("pairs", given)
    prepared = recipe.task.prepare(recipe)
    labels = prepared.splits["train"]["labels"][:]
    counts = [labels.count(number) for number in range(2)]
    assert prepared.config["class_weights"] == [len(labels) / (2 * number) for number in counts]


@pytest.mark.slow
def test_the_baseline_compares_words(pairs: Path, tmp_path: Path) -> None:
    recipe = recipes.load("pairs", [f"data.path={pairs}", "data.test_fraction=0.2"])
    fitted = recipe.task.baselines()["tfidf"]().fit(recipe)
    # Documents of one animal have its three words in another order.
    assert fitted.scores["test"].accuracy > 0.9
    assert not fitted.chosen["features"].startswith("u, v")
    # Only the order of these says which is which.
    turned = [{**row, "label": "first" if "purr" in row["first"] else "second"} for row in rows()]
    recipe = recipes.load("pairs", [f"data.path={write(tmp_path / 'turned.csv', turned)}"])
    fitted = recipe.task.baselines()["tfidf"]().fit(recipe)
    assert fitted.chosen["features"].startswith("u, v, |u - v|, u * v of words")
    assert fitted.scores["validation"].accuracy == 1


def test_a_baseline_of_three_classes(tmp_path: Path) -> None:
    three = [{**row, "label": "none" if number % 5 == 0 else row["label"]} for number, row in enumerate(rows())]
    three = [{**row, "second": "x y z"} if row["label"] == "none" else row for row in three]
    recipe = recipes.load("pairs", [f"data.path={write(tmp_path / 'three.csv', three)}"])
    fitted = recipe.task.baselines()["tfidf"]().fit(recipe)
    assert fitted.scores["validation"].accuracy > 0.9


@pytest.mark.slow
def test_documents_longer_than_the_model_are_named(pairs: Path, tmp_path: Path, run: TrainedRun) -> None:
    given = [f"data.path={pairs}", *SMALL, *QUICK, "model.position=learned", "model.max_positions=8"]
    with pytest.raises(UserError, match=r"at most 8 tokens for learned positions, got 20 in a document"):
        train("pairs", given, run=tmp_path / "short", progress=False)
    settings = [*given, "data.max_length=8", "training.num_train_epochs=1"]
    short = train("pairs", settings, run=tmp_path / "cut", progress=False)
    whole = ["data.max_length=0"]
    found = list(predict(short.folder, write(tmp_path / "one.csv", rows()[:3]), overrides=whole))
    too_long = [max(len(row["first"].split()), len(row["second"].split())) > 8 for row in rows()[:3]]
    assert [bool(one.error) for one in found] == too_long


def test_an_encoder_reads_both_documents_once(pairs: Path, tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}
    folder = make_encoder(tmp_path / "encoder", BertConfig(vocab_size=60, hidden_size=8, **shape))
    given = [f"data.path={pairs}", *QUICK, f"model.encoder={folder}"]
    given += ["model.dim=16", "model.heads=2", "training.num_train_epochs=1"]
    recipe = recipes.load("pairs", given)
    prepared = recipe.task.prepare(recipe)
    model = recipe.task.build_model(recipe, prepared)
    arguments = arguments_of(recipe, RunFolder(tmp_path / "run", "new"), False)
    trainer = recipe.task.make_trainer(recipe, model, arguments, prepared)
    batch = next(iter(trainer.get_train_dataloader()))
    model.eval()
    with torch.no_grad():
        stored = model(**batch).logits
        read = model(**{name: value for name, value in batch.items() if not name.endswith("_embeds")}).logits
    # Outputs are stored as float16.
    torch.testing.assert_close(stored, read, rtol=1e-2, atol=1e-3)
    assert {"inputs_embeds", "second_embeds"} <= batch.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("train pairs data.path={folder}/one.csv", "expected a column 'second' in one.csv, got 'first', 'label'"),
        ("train pairs data.path={folder}/same.csv", "expected at least two classes in the training data"),
        ("train pairs data.path={pairs} data.first_column=second", "data.second_column"),
        ("train pairs data.path={pairs} model.wide_buckets=8", "model.wide_buckets"),
        ("train pairs data.path={pairs} data.second=x", "data.second_column"),
        ("export {run}", "expected a task whose models read rows of tokens to export one, got 'document_pairs'"),
        ("export {run} --format hub", "got a LongspanForDocumentPairs of the task 'document_pairs'"),
        ("predict {run} {folder}/one.csv", "expected a column 'second' in one.csv"),
        ("generate {run} --prompt x", "expected a run that continues texts"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: str, told: str, run: TrainedRun, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some: list[dict[str, Any]] = [{"first": row["first"], "label": row["label"]} for row in rows()]
    write(tmp_path / "one.csv", some)
    write(tmp_path / "same.csv", [{**row, "label": "x"} for row in rows()])
    given = [each.format(folder=tmp_path, run=run.folder, pairs=pairs) for each in arguments.split()]
    assert cli.main(given) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("longspan: ")
    assert told in error


@pytest.mark.slow
def test_a_run_is_loaded_with_its_processor(run: TrainedRun) -> None:
    loaded = load_run(run.folder)
    assert list(loaded.processor.streams) == ["input_ids", "second_ids"]
    card = Path(run.folder, "README.md").read_text(encoding="utf-8")
    assert "LongspanForDocumentPairs.from_pretrained(name)" in card
    assert "only the first 30 tokens of each are read" in card
