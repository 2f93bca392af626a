"""The verbs as functions: typed results that agree with the files, and nothing computed twice."""

import json
from pathlib import Path
from typing import Any

import interpreters
import pandas as pd
import pytest
from torch import Tensor

import longspan
from longspan import LongspanConfig, UserError, compare, evaluate, predict, recipes, train
from longspan.results import Comparison, Evaluation, TrainingResult
from longspan.tasks.base.classes import ClassificationScores, ClassPrediction
from longspan.tasks.document_classification.task import DocumentClassification
from longspan.training import lengths
from longspan.verbs.runs import load_run

SMALL = ["data.tokens=words", "data.vocab_size=60", "data.test_fraction=0.2", "model.dim=8", "model.heads=2"]
SMALL += ["model.depth=1", "training.num_train_epochs=2", "training.learning_rate=0.02"]


def small(animals: Path, *more: str) -> list[str]:
    return [f"data.path={animals}", *SMALL, *more]


@pytest.fixture(scope="module")
def result(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train("quickstart", small(animals), tmp_path_factory.mktemp("made") / "run", progress=False)


@pytest.mark.slow
def test_results_are_typed_and_agree_with_the_files(result: TrainingResult, animals: Path) -> None:
    run = Path(result.folder)
    assert isinstance(result, TrainingResult)
    assert all(isinstance(scores, ClassificationScores) for scores in result.scores.values())
    assert json.loads((run / "metrics.json").read_text(encoding="utf-8")) == result.to_dict()
    evaluation = evaluate(run)
    assert isinstance(evaluation, Evaluation)
    assert isinstance(evaluation.scores, ClassificationScores)
    written = (run / "evaluation/metrics.json").read_text(encoding="utf-8")
    assert json.loads(written) == evaluation.to_dict()
    assert evaluation.scores.confusion == result.scores["test"].to_dict()["confusion"]
    found = list(predict(run, animals))
    assert len(found) == 240
    assert all(isinstance(one, ClassPrediction) and one.label in ("cat", "dog") for one in found)


@pytest.mark.slow
def test_a_loaded_run_does_for_its_folder(result: TrainingResult, animals: Path) -> None:
    run = load_run(result.folder)
    assert run.task.name == "document_classification"
    assert evaluate(run).scores == evaluate(result.folder).scores
    assert next(predict(run, animals)) == next(predict(result.folder, animals))


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_comparing_leaves_what_each_run_says(animals: Path, tmp_path: Path) -> None:
    found = compare("quickstart", ["additive", "softmax"], 1, small(animals), tmp_path / "cmp")
    assert isinstance(found, Comparison)
    assert found.kind is ClassificationScores
    assert [run.error for run in found.runs] == [None, None]
    assert json.loads((tmp_path / "cmp/comparison.json").read_text(encoding="utf-8")) == found.to_dict()
    for run in found.runs:
        own = json.loads(Path(run.folder, "metrics.json").read_text(encoding="utf-8"))
        assert run.scores["validation"].to_dict() == own["validation"]
        assert run.parameters == own["parameters"]
    (again,) = compare("quickstart", ["additive"], 1, small(animals), tmp_path / "cmp").runs
    assert again == found.runs[0]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was computed: "outputs" for each pass of a model over documents, "scores" for each time they were scored."""
    calls: list[str] = []
    usual_outputs, usual_score = lengths.outputs, DocumentClassification.score

    def outputs(*args: Any, **kwargs: Any) -> Tensor:
        calls.append("outputs")
        return usual_outputs(*args, **kwargs)

    def score(
        self: DocumentClassification, logits: Tensor, targets: Tensor, config: LongspanConfig
    ) -> ClassificationScores:
        calls.append("scores")
        return usual_score(self, logits, targets, config)

    monkeypatch.setattr(lengths, "outputs", outputs)
    monkeypatch.setattr("longspan.tasks.base.examples.outputs", outputs)
    monkeypatch.setattr(DocumentClassification, "score", score)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("best", ["true", "false"])
def test_validation_is_scored_once_per_evaluation_and_not_again_at_the_end(
    best: str, animals: Path, tmp_path: Path, scored: list[str]
) -> None:
    more = f"training.load_best_model_at_end={best}"
    result = train("quickstart", small(animals, more), tmp_path / "run", progress=False)
    assert len([row for row in result.history if "validation_accuracy" in row]) == 2
    # After each of two epochs, and the test split at the end.
    assert scored == ["outputs", "scores"] * 3
    scored.clear()
    evaluate(tmp_path / "run")
    assert scored == ["outputs", "scores"]


def test_a_recipe_and_overrides_are_not_mixed(animals: Path, tmp_path: Path) -> None:
    recipe = recipes.load("quickstart", small(animals))
    with pytest.raises(UserError, match=r"expected overrides only with a recipe"):
        train(recipe, ["model.depth=1"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("verb", "more"), [(train, {}), (compare, {"mixers": ["additive"]})])
def test_data_are_given_once(verb: Any, more: dict[str, Any], animals: Path, tmp_path: Path) -> None:
    rows = [{"text": "purr", "label": "cat"}, {"text": "wag", "label": "dog"}] * 8
    for given, settings in (([f"data.path={animals}"], {}), ([], {"test": str(animals)})):
        with pytest.raises(UserError, match=r"expected data=... or data.(path|test)=..., got both; leave one of them"):
            verb("classify", overrides=given, data=rows, run=tmp_path / "run", **more, **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_mistakes_in_options_name_what_there_is(result: TrainingResult) -> None:
    with pytest.raises(
        UserError, match=r"'document_classification' of .* has no option 'window'; known names are precision, recall\."
    ):
        evaluate(result.folder, window=3)
    with pytest.raises(UserError, match=r"generating has no option 'topk'; did you mean 'top_k'\?"):
        longspan.generate(result.folder, topk=3)
    with pytest.raises(UserError, match=r"top_p must be above 0 and at most 1"):
        longspan.generate(result.folder, top_p=3.0)


@pytest.mark.slow
def test_whether_there_is_anything_to_predict_is_found_out_at_once(result: TrainingResult, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file or folder"):
        predict(result.folder, tmp_path / "nowhere.csv")


def test_every_public_name_is_there_and_listed() -> None:
    for name in longspan.__all__:
        assert getattr(longspan, name) is not None
    assert dir(longspan) == sorted(longspan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        longspan.trian  # noqa: B018


@pytest.mark.slow
def test_the_functions_come_without_their_modules() -> None:
    """`from longspan import train` is the function, whatever was imported before."""
    code = (
        "import longspan.cli, longspan.recipes, longspan.verbs; from longspan import train, evaluate, predict, compare;"
        "assert all(map(callable, (train, evaluate, predict, compare)))"
    )
    interpreters.printed(code)


def test_data_are_given_by_name(animals: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(animals)
    for given in ((frame,), ("classify", frame), ("classify", [{"text": "purr", "label": "cat"}])):
        with pytest.raises(UserError, match=r"^expected .*, got .*; give data by name, as data=frame\.$"):
            train(*given, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
