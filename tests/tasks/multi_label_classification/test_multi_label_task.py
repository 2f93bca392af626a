"""Several labels per document, from the command line: tables of lists, of text and of columns."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import drawn

from longspan import cli, evaluate, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Prepared
from longspan.training import base
from longspan.verbs.runs import load_run

WORDS = {"sport": "goal match", "money": "bank stock", "art": "paint museum"}
SMALL = [
    "data.tokens=words",
    "data.test_fraction=0.1",
    "training.min_steps=0",
    "model.dim=16",
    "model.heads=2",
    "model.depth=1",
]

LEARNING = ["training.num_train_epochs=12", "training.per_device_train_batch_size=8", "training.learning_rate=0.01"]
LEARNING += ["model.dropout=0.0", "model.token_dropout=0.0", "model.pooling=attention"]


def rows() -> list[tuple[str, list[str]]]:
    """Documents of which each label has two words, and some of which have no label."""
    found = []
    for number in range(120):
        labels = [name for name, every in zip(WORDS, (2, 3, 7), strict=True) if number % every == 0]
        words = [f"w{number * i % 13}" for i in range(3 + number % 9)]
        found.append((" ".join([*words, *(WORDS[label] for label in labels)]), labels))
    return found


def write(path: Path, labels: str = "labels", join: str = "; ") -> Path:
    table: list[dict[str, Any]] = []
    for text, given in rows():
        if labels:
            table.append({"text": text, labels: join.join(given) if path.suffix == ".csv" else given})
        else:
            table.append({"text": text} | {name: "1" if name in given else ["0", ""][len(text) % 2] for name in WORDS})
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(table), path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run that tells labels apart."""
    folder = tmp_path_factory.mktemp("several")
    overrides = [f"data.path={write(folder / 'rows.jsonl')}", *SMALL, *LEARNING]
    train(recipes.load("multi-label", overrides), run=folder / "run", progress=False)
    return folder / "run"


def test_counts_are_regressions_by_label(tmp_path: Path) -> None:
    recipe = recipes.load("multi-label", [f"data.path={write(tmp_path / 'rows.jsonl')}", *SMALL])
    kind = recipe.task.counts()
    assert kind is not None
    assert recipe.task.baselines()["ngrams"] is kind
    fitted = kind().fit(recipe)
    # A word decides each label.
    assert fitted.scores["validation"].micro_f1 == 1
    assert fitted.scores["test"].mean_average_precision > 0.95


@pytest.mark.slow
def test_a_run_reports_its_parts(run: Path) -> None:
    """Each part has thresholds of its own, which the validation split has chosen; `evaluate` finds the same again."""
    values = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    head = load_run(run).model.config.head
    assert [len(each) for each in head.part_thresholds] == [3, 3]
    assert head.thresholds == [row["threshold"] for row in values["validation"]["per_label"].values()]
    for name, split in (("parts", "validation"), ("test_parts", "test")):
        parts = values[name]
        assert parts["score"] == "micro_f1"
        assert parts["values"]["both"] == pytest.approx(values[split]["micro_f1"])
        assert evaluate(run, split=split).details["parts"]["values"] == pytest.approx(parts["values"])


Command = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def give(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return give


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("rows.csv", ["data.label_separator=;"]),
        ("rows.parquet", []),
        ("flags.csv", ["data.label_columns=money,sport"]),
    ],
)
def test_every_form_of_labels_is_read(name: str, overrides: list[str], tmp_path: Path) -> None:
    data = write(tmp_path / name, labels="" if name.startswith("flags") else "labels")
    recipe = recipes.load("multi-label", [f"data.path={data}", *SMALL, *overrides])
    prepared = recipe.task.prepare(recipe)
    labels = prepared.details["labels"]
    # In the order of the alphabet, or in that of the columns.
    assert labels == (["money", "sport"] if "columns" in str(overrides) else ["art", "money", "sport"])
    counted = dict.fromkeys(labels, 0.0)
    for split in prepared.splits.values():
        for row in split["labels"][:]:
            for label, value in zip(labels, row, strict=True):
                counted[label] += value
    assert counted == {label: float(sum(label in given for _, given in rows())) for label in labels}
    facts = prepared.data["train"]
    assert facts["without_labels"] > 0
    assert 0 < facts["labels_per_document"] < 2


def test_training_says_how_good_it_is_and_stores_thresholds(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["mean_average_precision"] > 0.9
    assert metrics["labels"] == ["art", "money", "sport"]
    chosen = [row["threshold"] for row in metrics["validation"]["per_label"].values()]
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["head"]["thresholds"] == chosen
    assert chosen != [0.5] * 3
    # The test split is scored with them, and changes none.
    assert [row["threshold"] for row in metrics["test"]["per_label"].values()] == chosen
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "`art`, `money`, `sport`" in card
    assert "mean average precision" in card


def test_the_kept_epoch_keeps_its_own_thresholds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the best epoch come back without their configuration."""
    monkeypatch.setattr(base, "improves", lambda scores, best, *_: best is None)
    overrides = [f"data.path={write(tmp_path / 'rows.jsonl')}", *SMALL, *LEARNING, "training.num_train_epochs=4"]
    run = tmp_path / "run"
    train(recipes.load("multi-label", overrides), run=run, progress=False)
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    kept, last = sorted((run / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert metrics["kept_epoch"] == 1
    first, second, stored = (
        json.loads((folder / "config.json").read_text(encoding="utf-8"))["head"]["thresholds"]
        for folder in (kept, last, run)
    )
    assert first == stored
    assert second != stored


def test_evaluate_predict_and_a_threshold_for_all(run: Path, tmp_path: Path, command: Command) -> None:
    code, out, _ = command("evaluate", str(run))
    assert code == 0
    # Headers may be wrapped.
    assert re.search(r"labels\b.*\bper\b", out, re.DOTALL)
    assert re.search(r"average\b.*\bprecision", out, re.DOTALL)
    drawn(run / "evaluation" / "precision_recall.png")
    # From 0 on, every label is given.
    code, out, _ = command("evaluate", str(run), "--threshold", "0", "--json")
    all_given = json.loads(out)["per_label"].values()
    assert [(row["recall"], row["threshold"]) for row in all_given] == [(1, 0)] * 3
    code, _, told = command("evaluate", str(run), "--threshold", "5")
    assert code == 2
    assert told.splitlines()[-1] == "longspan: threshold must be from 0 to 1, got 5.0; choose another."

    (tmp_path / "new.csv").write_text("text\nw1 goal match bank stock\nw2 w3 w4\n", encoding="utf-8")
    code, out, _ = command("predict", str(run), str(tmp_path / "new.csv"))
    assert code == 0
    both, none = map(json.loads, out.splitlines())
    assert sorted(both["labels"]) == ["money", "sport"]
    assert none["labels"] == []
    assert list(none["probabilities"]) == ["art", "money", "sport"]
    least = dict(zip(["art", "money", "sport"], load_run(run).model.config.head.thresholds, strict=True))
    assert [name for name, share in both["probabilities"].items() if share >= least[name]] == sorted(both["labels"])


def test_the_lines_of_its_card_give_what_predict_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longspan import predict

    (tmp_path / "new.txt").write_text("w1 goal match bank stock", encoding="utf-8")
    (expected,) = predict(run, tmp_path / "new.txt")
    card = (run / "README.md").read_text(encoding="utf-8")
    code = card.partition("```python\n")[2].partition("```")[0]
    told: list[tuple[Any, ...]] = []
    code = code.replace("Some text.", "w1 goal match bank stock")
    monkeypatch.chdir(run)
    exec(code, {"print": lambda *values: told.append(values)})
    assert [name for name, _ in told] == expected.to_dict()["labels"]
    shares = expected.to_dict()["probabilities"]
    assert all(share == pytest.approx(shares[name], abs=1e-5) for name, share in told)


def prepare(*overrides: str) -> Prepared:
    recipe = recipes.load("multi-label", [*SMALL, *overrides])
    return recipe.task.prepare(recipe)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.label_columns=sport,monye", r"expected a column 'monye' in flags.csv, got .*; did you mean 'money'\?"),
        ("data.label_columns=sport,sport", r"must name different columns, got 'sport' 2 times; name it once"),
        ("data.label_columns=text,sport", "must name two columns, got 'text' for both"),
        ("data.label_columns=sport,none", r"each label of data.label_columns, got none with 'none'; add some"),
        (
            "data.label_columns=sport,odd",
            r"flags.csv, row 1: no labels \(expected 0 or 1, or true or false, got text of 1 character in",
        ),
        ("data.label_column=nothing", "expected documents with labels in the training data, got none with any"),
        ("data.label_column=tags", r"expected a column 'tags' in flags.csv, got"),
        ("data.label_colums=a", "did you mean 'data.label_columns'"),
        ("data.class_weights=balanced", "data.class_weights is not for the task 'multi_label_classification' but for"),
    ],
)
def test_mistakes_are_one_sentence(override: str, message: str, tmp_path: Path) -> None:
    with (tmp_path / "flags.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "sport", "money", "none", "odd", "nothing"])
        writer.writerows([f"w{n}", n % 2, n % 3 == 0, 0, "x", "[]"] for n in range(40))
    with pytest.raises(UserError, match=message) as error:
        prepare(f"data.path={tmp_path / 'flags.csv'}", override)
    assert "\n" not in str(error.value)


def test_lists_of_zeros_and_ones_are_no_names(tmp_path: Path) -> None:
    lines = [{"text": f"w{n}", "labels": [n % 2, int(n % 3 == 0), 0.0]} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="expected the names of labels in column 'labels', got only 0 and 1, as in"):
        prepare(f"data.path={tmp_path / 'rows.jsonl'}")


def test_either_one_column_or_several() -> None:
    with pytest.raises(UserError, match=r"either data.label_column or data.label_columns, got both \('tags' and 'a', "):
        recipes.load("multi-label", ["data.path=a.csv", "data.label_column=tags", "data.label_columns=a,b"])


def test_a_label_that_training_lacks_is_refused(tmp_path: Path, run: Path, command: Command) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "w1", "labels": ["spotr"]}\n', encoding="utf-8")
    path = write(tmp_path / "rows.jsonl")
    recipe = recipes.load("multi-label", [f"data.path={path}", f"data.test={tmp_path / 'test.jsonl'}", *SMALL])
    with pytest.raises(UserError, match=r"only labels of the training data in the test data, got 'spotr'"):
        recipe.task.prepare(recipe)
    code, _, told = command("evaluate", str(run), "--data", str(tmp_path / "test.jsonl"))
    assert code == 2
    assert "test.jsonl, line 1: expected a label that the model knows, got 'spotr'; did you mean 'sport'?" in told


def test_labels_that_look_joined_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rows.csv", join=" | ")
    for override, noticed in (("data.label_separator=;", True), ("data.label_separator=|", False)):
        prepare(f"data.path={path}", override)
        told = "no document has several labels, though some such as 'money | art' look joined"
        assert (told in capsys.readouterr().err) == noticed


def test_a_folder_of_classes_is_for_another_task(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text("text")
    recipe = recipes.load("multi-label", [f"data.path={tmp_path}", *SMALL])
    with pytest.raises(UserError, match=r"expected a column 'labels' \(data.label_column\) in the folder .*use a csv"):
        recipe.task.prepare(recipe)
