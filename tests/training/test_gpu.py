"""What a training on a GPU gives is what a CPU gives, and each goes on with what the other saved."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import interrupted
from safetensors.torch import load_file

from longspan import evaluate, generate, mixers, predict, recipes, train
from longspan.verbs import runs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="expected a GPU that PyTorch knows")

#: Adam makes up to a whole step of what rounding leaves of gradients that are zero.
ROUNDING: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-4}


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: False)
        patch.setattr(runs, "_device", lambda: torch.device("cpu"))
        yield


def same_weights(one: Path, other: Path) -> None:
    found, wanted = (load_file(run / "model.safetensors") for run in (one, other))
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, **ROUNDING, msg=name)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog", "run"]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(words[number * number % 97 % 10] for number in range(300)), encoding="utf-8")
    return path


def language(text: Path, folder: Path, mixer: str, **model: Any) -> Any:
    settings = {"dim": 16, "depth": 1, "heads": 2, "mixers": [mixer], "dropout": 0.0, **model}
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else value!r}" for key, value in settings.items()]
    (folder / "recipe.toml").write_text(
        f"""
        task = "language_modelling"
        [data]
        path = "{text}"
        tokens = "characters"
        validation_fraction = 0.2
        [model]
        """
        + "\n".join(lines)
        + """
        [training]
        segment_length = 16
        per_device_train_batch_size = 2
        max_steps = 6
        """
    )
    return recipes.load(str(folder / "recipe.toml"))


CAUSAL = [name for name in mixers.names() if mixers.describe(name).causal and mixers.describe(name).streaming]


@pytest.mark.parametrize("mixer", CAUSAL)
def test_language_models_learn_the_same(mixer: str, text: Path, tmp_path: Path) -> None:
    forget = {"forget": "input"} if "forget" in mixers.options(mixer) else {}
    recipe = language(text, tmp_path, mixer, short_convolution=4, **forget)
    here = train(recipe, run=tmp_path / "gpu", progress=False)
    with without_gpu():
        there = train(recipe, run=tmp_path / "cpu", progress=False)
        read = "".join(generate(tmp_path / "gpu", "the cat", greedy=True, max_new_tokens=12))
    same_weights(tmp_path / "gpu", tmp_path / "cpu")
    assert here.scores["validation"].loss == pytest.approx(there.scores["validation"].loss, rel=1e-4)
    assert "".join(generate(tmp_path / "gpu", "the cat", greedy=True, max_new_tokens=12)) == read


@pytest.mark.parametrize("first", ["cpu", "gpu"])
def test_a_training_goes_on_on_another_device(first: str, text: Path, tmp_path: Path) -> None:
    recipe = language(text, tmp_path, "additive", ngrams=[2], ngram_buckets=50)
    places: dict[str, Any] = {"cpu": without_gpu, "gpu": contextlib.nullcontext}
    other = next(place for place in places if place != first)
    with places[first]():
        train(recipe, run=tmp_path / "whole", progress=False)
        interrupted(recipe, tmp_path / "run", 3)
    with places[other]():
        train(recipe, run=tmp_path / "run", resume=True, progress=False)
    same_weights(tmp_path / "run", tmp_path / "whole")


def test_classifiers_with_counts_learn_the_same(animals: Path, tmp_path: Path) -> None:
    given = [f"data.path={animals}", "model.classifier_dropout=0.0", "model.token_dropout=0.0", "training.max_steps=8"]
    recipe = recipes.load("classify", [*given, "training.min_steps=0", "training.max_minutes=0"])
    asked = tmp_path / "asked.csv"
    asked.write_text("text\npurr purr bark\nwag fetch\n", encoding="utf-8")
    train(recipe, run=tmp_path / "gpu", progress=False)
    with without_gpu():
        train(recipe, run=tmp_path / "cpu", progress=False)
        there = [row.to_dict()["probabilities"] for row in predict(tmp_path / "gpu", asked)]
        scored = evaluate(tmp_path / "gpu", split="validation").scores.loss
    same_weights(tmp_path / "gpu", tmp_path / "cpu")
    here = [row.to_dict()["probabilities"] for row in predict(tmp_path / "gpu", asked)]
    assert here == [pytest.approx(row, rel=1e-4) for row in there]
    assert evaluate(tmp_path / "gpu", split="validation").scores.loss == pytest.approx(scored, rel=1e-4)


def test_half_precision_learns(text: Path, tmp_path: Path) -> None:
    recipe = language(text, tmp_path, "additive", forget="input")
    plain = train(recipe, run=tmp_path / "plain", progress=False).scores["validation"].loss
    recipe.training["bf16"] = True
    half = train(recipe, run=tmp_path / "half", progress=False).scores["validation"].loss
    # Eight bits of each number, after six steps.
    assert half == pytest.approx(plain, rel=2e-2)
