"""Classes that weigh the same however rare they are, and labels that look made for another task."""

import json
from collections import Counter
from pathlib import Path

import pytest

from longspan import recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Prepared
from longspan.tasks.document_classification.task import hint
from longspan.verbs.runs import load_run

SMALL = [
    "model.wide=false",
    "data.tokens=words",
    "model.dim=8",
    "model.heads=2",
    "model.depth=1",
    "training.num_train_epochs=1",
]


def write(path: Path, labels: list[str]) -> Path:
    rows = "".join(json.dumps({"text": f"w{n % 5} x{n}", "label": label}) + "\n" for n, label in enumerate(labels))
    path.write_text(rows, encoding="utf-8")
    return path


def prepare(path: Path, *overrides: str) -> Prepared:
    recipe = recipes.load("quickstart", [f"data.path={path}", "data.test_fraction=0", *SMALL, *overrides])
    return recipe.task.prepare(recipe)


def test_weights_make_classes_equal(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ["often", "often", "often", "rare"] * 10)
    assert "class_weights" not in prepare(path).config
    prepared = prepare(path, "data.class_weights=balanced")
    counts = Counter(prepared.splits["train"]["labels"][:])
    weights = prepared.config["class_weights"]
    n = len(prepared.splits["train"])
    # n / (k n_c): each class has the same total, and the mean over documents stays 1.
    assert weights == pytest.approx([n / (2 * counts[0]), n / (2 * counts[1])])
    assert counts[0] * weights[0] == pytest.approx(counts[1] * weights[1])
    assert sum(weights[label] for label in prepared.splits["train"]["labels"][:]) == pytest.approx(n)


def test_weights_are_stored_and_change_training_but_not_scoring(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ["often", "often", "often", "rare"] * 10)
    overrides = [f"data.path={path}", "data.test_fraction=0", *SMALL, "data.class_weights=balanced"]
    # With no steps worth the name, the validation loss is that of the first weights.
    overrides += ["training.learning_rate=0.0", "model.dropout=0.0", "model.token_dropout=0.0"]
    weighted = train(recipes.load("quickstart", overrides), run=tmp_path / "weighted", progress=False)
    overrides.append("data.class_weights=none")
    plain = train(recipes.load("quickstart", overrides), run=tmp_path / "plain", progress=False)
    assert weighted.scores == plain.scores
    config = load_run(tmp_path / "weighted").model.config
    assert config.head.class_weights == pytest.approx([2 / 3, 2])
    assert load_run(tmp_path / "plain").model.config.head.class_weights is None
    losses = [[row["train_loss"] for row in found.history if "train_loss" in row] for found in (weighted, plain)]
    # What is drawn is the loss that validation measures.
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_weights_count_beside_label_smoothing(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ["often", "often", "often", "rare"] * 10)
    overrides = [f"data.path={path}", "data.test_fraction=0", *SMALL, "training.label_smoothing_factor=0.1"]
    overrides += ["training.num_train_epochs=5", "training.learning_rate=0.02"]
    means = {}
    for weights in ("balanced", "none"):
        recipe = recipes.load("quickstart", [*overrides, f"data.class_weights={weights}"])
        train(recipe, run=tmp_path / weights, progress=False)
        bias = load_run(tmp_path / weights).model.classifier.bias
        means[weights] = float((bias[1] - bias[0]).detach())
    # The rare class has the second number.
    assert means["balanced"] > means["none"]


def test_there_are_two_choices() -> None:
    with pytest.raises(UserError, match=r"there is no data.class_weights 'balancd'; did you mean 'balanced'\?"):
        recipes.load("quickstart", ["data.class_weights=balancd"])
    with pytest.raises(UserError, match=r"model.class_weights is set from the data"):
        recipes.load("quickstart", ["model.class_weights=1,2"])


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([str(n) for n in range(200)], "look like quantities (200 different numbers), which the recipe 'regression'"),
        (["0.5", "1", "1.5"] * 100, "look like quantities (3 different numbers such as 0.5)"),
        (["1", "2", "10"] * 10, ""),
        # Seventy-seven classes with numbers for names, each with many documents.
        ([str(n % 77) for n in range(77 * 60)], ""),
        (["a", "1", "2.5"], ""),
        (['["a", "b"]', '["a"]'], "the labels look like lists, which the recipe 'multi-label' reads"),
        (["a;b", "a", "b", "a;b;c"], "labels such as 'a;b' look like several in one, .* with data.label_separator=';'"),
        (["a, b", "a", "b, a", "b"], "labels such as 'a, b' look like several in one, which the recipe 'multi-label'"),
        (["Boston, MA", "Austin, TX", "New York, NY"], ""),
        (["0,5", "1,5", "0,0", "1,0", "2,0"], ""),
        (["pos", "neg"], ""),
    ],
)
def test_labels_that_look_made_for_another_task(labels: list[str], told: str) -> None:
    found = hint(Counter(labels))
    assert bool(found) == bool(told)
    start, _, rest = told.partition(" .* ")
    assert start in found
    assert found.endswith(rest) or not rest


def test_the_note_is_printed_once_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(write(tmp_path / "rows.jsonl", ["1.5", "2", "3"] * 20))
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("longspan: ")]
    assert notes == [
        "longspan: the labels look like quantities (3 different numbers such as 1.5), which the recipe "
        "'regression' learns to predict."
    ]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (
            [str(n / 2) for n in range(40)],
            r"expected an example of class '0.0' .*, got 1 .*; the labels look like quant",
        ),
        (["a;b", "b", "a", "a;b;c", "c", "c;b"], r"of class 'a'.*, got 1 .*; labels such as 'a;b' look like several"),
        (["a;b", "", "a", "b"] * 5, r"no label in 5 rows .*; labels such as 'a;b' look like several"),
    ],
)
def test_where_training_is_impossible_the_error_says_it(labels: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as error:
        prepare(write(tmp_path / "rows.jsonl", labels))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_other_errors_have_no_hint(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [str(n / 2) for n in range(40)])
    with pytest.raises(UserError, match="expected a column 'body'") as error:
        prepare(path, "data.text_column=body")
    assert "quantities" not in str(error.value)


def test_a_column_of_lists_is_for_another_recipe(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": ["x", "y"]}\n', encoding="utf-8")
    told = r"expected one label in column 'label', got a value of type list; fix the row, or train the recipe 'multi-la"
    with pytest.raises(UserError, match=told):
        prepare(tmp_path / "rows.jsonl")
