"""A number for each document, from the command line, in the unit of the data throughout."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import drawn
from safetensors.torch import load_file
from sklearn.linear_model import Ridge as ScikitRidge

from longspan import cli, evaluate, explain, predict, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.ngrams.bags import Bags
from longspan.tasks.base.ngrams.kinds import Ridge
from longspan.verbs.runs import load_run

SMALL = [
    "data.tokens=words",
    "data.test_fraction=0.1",
    "training.min_steps=0",
    "model.dim=16",
    "model.heads=2",
    "model.depth=1",
]
LEARNING = ["training.num_train_epochs=8", "training.per_device_train_batch_size=8", "training.learning_rate=0.02"]
LEARNING += ["model.dropout=0.0", "model.token_dropout=0.0", "model.pooling=attention"]
WORDS = {"awful": 1.0, "fair": 3.0, "great": 5.0}


def write(path: Path, scale: float = 1.0, shift: float = 0.0, column: str = "label") -> Path:
    """Documents whose number depends on one word."""
    rows: list[dict[str, Any]] = []
    for number in range(120):
        word = list(WORDS)[number % 3]
        filler = [f"w{number * i % 13}" for i in range(3 + number % 9)]
        rows.append({"text": " ".join([*filler, word, "film"]), column: WORDS[word] * scale + shift})
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that predicts prices in thousands, for which -100 stands for many."""
    folder = tmp_path_factory.mktemp("numbers")
    # 1, 3 and 5 become -100, 1900 and 3900.
    data = write(folder / "rows.parquet", 1000.0, -1100.0, "price")
    overrides = [f"data.path={data}", "data.label_column=price", *SMALL, *LEARNING]
    train(recipes.load("regression", overrides), run=folder / "run", progress=False)
    return folder / "run"


Command = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def give(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return give


def test_counts_are_those_of_ridge_regression() -> None:
    """The weights of n-grams are scikit-learn's, whose intercept is a feature here, too, and in any unit."""
    rng = np.random.default_rng(0)
    rows = [np.unique(rng.integers(0, 30, 9)) for _ in range(50)]
    counts = np.array([len(row) for row in rows])
    bags = Bags(np.concatenate(rows).astype(np.int32), np.ones(counts.sum(), np.float32), counts, 30)
    dense = np.stack([np.isin(range(30), row) for row in rows]).astype(float)
    numbers = dense[:, 3] - dense[:, 7] + rng.normal(size=50) / 3
    for penalty in (10.0, 1.0, 0.1):
        found = Ridge(bags, numbers).solve(penalty)
        expected = ScikitRidge(alpha=penalty, fit_intercept=False).fit(np.column_stack([dense, np.ones(50)]), numbers)
        # The residual is a thousandth of the numbers' size, and no weight moves by more than that over the penalty.
        bound = 1e-3 * float(np.linalg.norm(numbers)) / penalty**0.5
        assert found.weights[:, 0] == pytest.approx(expected.coef_[:-1], abs=bound)
        assert float(found.bias[0]) == pytest.approx(expected.coef_[-1], abs=bound)


def test_counts_of_numbers_help_and_know_no_unit(tmp_path: Path) -> None:
    scores = []
    for path in (write(tmp_path / "rows.csv"), write(tmp_path / "rows.parquet", 1000.0, -1100.0)):
        recipe = recipes.load("regression", [f"data.path={path}", *SMALL])
        kind = recipe.task.counts()
        assert kind is not None
        assert recipe.task.baselines()["ngrams"] is kind
        scores.append(kind().fit(recipe).scores["validation"])
    assert scores[0].r2 > 0.9
    assert scores[1].mae == pytest.approx(1000 * scores[0].mae, rel=1e-4)


@pytest.mark.slow
def test_a_run_reports_its_parts(run: Path) -> None:
    values = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    parts = values["parts"]
    assert (parts["score"], parts["higher_is_better"]) == ("mae", False)
    assert parts["values"]["both"] == pytest.approx(values["validation"]["mae"], rel=1e-6)
    assert parts["values"]["both"] <= parts["values"]["counts"]
    found = evaluate(run, split="validation")
    assert found.details["parts"]["values"]["counts"] == pytest.approx(parts["values"]["counts"], rel=1e-5)
    told = explain(run, ["w1 w2 great film"])
    assert set(told.parts) == {"network", "n-grams"}


@pytest.mark.slow
def test_training_in_other_units_is_the_same(tmp_path: Path) -> None:
    """Targets are standardised, so that no learning rate depends on the unit; -100 is a number like others."""
    results = {}
    for name, path in {
        "run": write(tmp_path / "rows.csv"),
        "thousands": write(tmp_path / "rows.parquet", 1000.0, -1100.0),
    }.items():
        # Evidence of n-grams, in float16, would make more of the last digits of targets.
        short = [*LEARNING, "training.num_train_epochs=3", "model.wide=false"]
        recipe = recipes.load("regression", [f"data.path={path}", *SMALL, *short])
        results[name] = train(recipe, run=tmp_path / name, progress=False)
    for split, scores in results["run"].scores.items():
        expected = results["thousands"].scores[split].to_dict()
        found = scores.to_dict()
        # Targets are rounded to float32 in their own unit.
        for name in ("spearman", "r2", "loss"):
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-3)
        for name in ("mae", "rmse"):
            # A hundredth of a standard deviation.
            assert found[name] * 1000 == pytest.approx(expected[name], abs=16)
            assert found["baseline"][name] * 1000 == pytest.approx(expected["baseline"][name], rel=1e-5)
    weights, others = (load_file(tmp_path / name / "model.safetensors") for name in results)
    assert weights["classifier.weight"].numpy() == pytest.approx(others["classifier.weight"].numpy(), abs=1e-2)


@pytest.mark.slow
def test_it_learns_and_says_so_in_the_users_unit(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["mae"] < 0.3 * metrics["test"]["baseline"]["mae"]
    assert metrics["test"]["r2"] > 0.8
    assert metrics["data"]["train"]["mean"] == pytest.approx(metrics["training_mean"])
    config = load_run(run).model.config
    assert config.head.target_mean == metrics["training_mean"]
    assert config.head.target_scale == pytest.approx(1633, rel=0.05)
    card = (run / "README.md").read_text(encoding="utf-8")
    assert f"It predicts `price`, which was {metrics['training_mean']:,.0f}" in card
    assert "Always predicting the mean of the training documents has an MAE of 1," in card


@pytest.mark.slow
def test_evaluate_and_predict(run: Path, tmp_path: Path, command: Command) -> None:
    code, out, _ = command("evaluate", str(run))
    assert code == 0
    assert "the training mean" in out
    # Headers may be wrapped.
    assert re.search(r"MAE of\b", out)
    width, height = drawn(run / "evaluation" / "predicted.png")
    assert width > height
    (tmp_path / "new.jsonl").write_text('{"text": "great film w1"}\n{"text": "awful film w1"}\n', encoding="utf-8")
    code, out, _ = command("predict", str(run), str(tmp_path / "new.jsonl"))
    assert code == 0
    great, awful = (json.loads(line)["number"] for line in out.splitlines())
    assert great == pytest.approx(3900, abs=900)
    assert awful == pytest.approx(-100, abs=900)
    # As float32 is written, not all digits of a double.
    assert len(repr(great)) <= 10


@pytest.mark.slow
def test_the_lines_of_its_card_give_what_predict_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.txt").write_text("great film w1", encoding="utf-8")
    (expected,) = predict(run, tmp_path / "new.txt")
    code = (run / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    told: list[float] = []
    code = code.replace("Some text.", "great film w1")
    monkeypatch.chdir(run)
    exec(code, {"print": told.append})
    assert told == [pytest.approx(expected.to_dict()["number"], rel=1e-4)]


def prepare(path: Path, *overrides: str) -> Any:
    recipe = recipes.load("regression", [f"data.path={path}", *SMALL, *overrides])
    return recipe.task.prepare(recipe)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            ["3", "many"],
            r"a.csv, row 2: no number \(expected a number such as 3.5, got text of 4 characters\); fix it, or",
        ),
        (["3", ""], r"expected text and number in every row, .* got a.csv with no number in 20 rows"),
        (
            ["3", "3"],
            "expected numbers that differ in column 'label', got 3 for each of 32 training documents; check",
        ),
        (["1e300", "1"], r"data.label_column: expected a number below 3.4e38, got 1e\+300; use a larger unit"),
        (
            ["1700000000", "1700000001"],
            r"by more than rounding .* deviation of 0.5 around 1.7e\+09; subtract the same number",
        ),
    ],
)
def test_numbers_that_cannot_be_learned_are_refused(cells: list[str], message: str, tmp_path: Path) -> None:
    rows = "".join(f"w{number},{cells[number % 2]}\n" for number in range(40))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    with pytest.raises(UserError, match=message) as error:
        prepare(tmp_path / "a.csv")
    assert "\n" not in str(error.value)


def test_columns_are_named_as_for_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", column="stars")
    with pytest.raises(UserError, match=r"expected a column 'label' in a.csv, got 'text', 'stars'; set data.label_col"):
        prepare(path)
    assert prepare(path, "data.label_column=stars").config["id2label"] == {0: "stars"}
    (tmp_path / "b" / "pos").mkdir(parents=True)
    (tmp_path / "b" / "pos" / "1_8.txt").write_text("text")
    with pytest.raises(UserError, match=r"expected a column 'label' \(data.label_column\) in the folder .*use a csv"):
        prepare(tmp_path / "b")
