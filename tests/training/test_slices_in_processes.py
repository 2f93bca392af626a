"""Processes that read slices of the same rows compute and train what one process does with whole rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torchrun import in_two_processes

from longspan import evaluate, recipes, train
from longspan.errors import UserError

SCRIPT = Path(__file__).parent / "slices_in_processes.py"
# Dropout would draw other numbers, and Adam makes whole steps of what rounding leaves of gradients that are zero.
EXACT = ["model.dropout=0.0", "training.optim=sgd", "training.learning_rate=0.5", "training.logging_steps=1"]
EXACT += ["training.eval_strategy=steps", "training.eval_steps=2", "training.save_steps=2"]


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"]
    documents = [{"text": " ".join(random.choice(words, size))} for size in (150, 40, 3, 90, 60, 20, 70, 30)]
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps(document) for document in documents))
    path = tmp_path / "recipe.toml"
    # Segments of 49 tokens are cut into 25 and 24.
    path.write_text(f"""
        task = "language_modelling"
        [data]
        path = "{tmp_path / "text.jsonl"}"
        tokens = "characters"
        validation_fraction = 0.25
        [model]
        dim = 16
        depth = 2
        heads = 2
        initializer_range = 0.3
        mixers = ["additive", "linear"]
        forget = "input"
        short_convolution = 4
        ngrams = [2]
        ngram_buckets = 50
        [training]
        segment_length = 49
        carry_states = false
        max_steps = 4
        per_device_train_batch_size = 2
        """)
    labelled = [{**document, "label": "ab"[number % 2]} for number, document in enumerate(documents * 2)]
    (tmp_path / "labelled.jsonl").write_text("\n".join(json.dumps(document) for document in labelled))
    (tmp_path / "classes.toml").write_text(f"""
        task = "document_classification"
        [data]
        path = "{tmp_path / "labelled.jsonl"}"
        validation_fraction = 0.25
        [model]
        dim = 16
        depth = 1
        heads = 2
        mixers = ["additive"]
        pooling = "mean+max"
        wide = false
        [training]
        batch_tokens = 4096
        max_steps = 2
        per_device_train_batch_size = 2
        """)
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_with_slices_train_as_one_with_whole_rows(recipe_file: Path, tmp_path: Path) -> None:
    rows = ["training.per_device_train_batch_size=4"]
    train(recipes.load(str(recipe_file), [*EXACT, *rows]), run=tmp_path / "one", progress=False)
    ran = in_two_processes(SCRIPT, str(recipe_file), str(tmp_path), *EXACT, "training.context_parallel=2", count=4)
    for number in range(4):
        assert f"process {number} came to the last part" in ran.stdout, ran.stdout
    # The others end by themselves when one is killed.
    assert "the last part ended with: another process of this training run stopped" in ran.stdout, ran.stdout
    assert ran.stdout.count("one process reads in constant memory") == 1, ran.stdout
    evaluation = tmp_path / "cut" / "evaluation" / "metrics.json"
    scored = json.loads(evaluation.read_text())
    alone = evaluate(tmp_path / "cut", context="sliding", window=90, stride=60).to_dict()
    assert scored["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    same_as_one(tmp_path / "cut", tmp_path / "one")
    classes = recipes.load(str(tmp_path / "classes.toml"), [*EXACT, *rows])
    train(classes, run=tmp_path / "one class", progress=False)
    same_as_one(tmp_path / "cut classes", tmp_path / "one class")


def same_as_one(cut: Path, one: Path) -> None:
    found, expected = (json.loads((run / "metrics.json").read_text()) for run in (cut, one))
    assert (found["processes"], found["steps"]) == (4, expected["steps"])
    for key in ("train_loss", "validation_loss"):
        losses, wanted = ([row[key] for row in each["history"] if key in row] for each in (found, expected))
        np.testing.assert_allclose(losses, wanted, rtol=1e-5, err_msg=key)
    weights, whole = (load_file(run / "model.safetensors") for run in (cut, one))
    for name, tensor in whole.items():
        # Sums of gradients in another order, in float32.
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["training.context_parallel=2"], "context_parallel=2 divides, got 1"),
        (["training.context_parallel=2", "training.carry_states=true"], "carried states"),
        (["training.context_parallel=2", "training.gradient_checkpointing=true"], "gradient checkpointing"),
        (["training.context_parallel=2", "model.mixers=['softmax']", "model.forget=none"], "mixer Softmax"),
        (["training.context_parallel=2", "model.wide=true"], "wide part"),
        (["training.context_parallel=0"], "context_parallel"),
    ],
)
def test_what_cannot_be_cut_is_refused(recipe_file: Path, tmp_path: Path, settings: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        train(recipes.load(str(recipe_file), settings), run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
