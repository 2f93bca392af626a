"""Two processes, each with rows of its own, train and score as one process with the rows of both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torchrun import in_two_processes

from longspan import recipes, train
from longspan.results import TrainingResult

HERE = Path(__file__).parent
WORDS = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"]
SIZES = {
    "language_modelling": (150, 40, 3, 90, 60, 20, 70, 30),
    # Of the 13 for training, 4 at a time, the last batch has one for the first process and none for the second.
    "document_classification": (50, 3, 7, 20, 21, 9, 33, 4, 12, 15, 2, 5, 40, 8, 11, 30, 6),
}
# Classes weigh the same whichever process reads their documents.
DATA = {"language_modelling": "", "document_classification": 'class_weights = "balanced"'}
SHAPE = {
    "language_modelling": 'mixers = ["additive", "relative"]\nngrams = [2]\nngram_buckets = 50\nwide = true\n'
    "[training]\nsegment_length = 16\nmax_steps = 8",
    "document_classification": 'mixers = ["additive", "local"]\nwide = true\n'
    "[training]\nbatch_tokens = 4096\nnum_train_epochs = 3",
}
# Dropout would draw other numbers, and Adam makes whole steps of what rounding leaves of gradients that are zero.
EXACT = ["model.dropout=0.0", "training.optim=sgd", "training.learning_rate=0.5", "training.logging_steps=1"]
EXACT += ["training.gradient_accumulation_steps=2", "training.eval_strategy=steps"]
EXACT += ["training.eval_steps=2", "training.save_steps=2"]


@pytest.fixture(scope="module")
def recipe_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp(request.param)
    documents = [
        {"text": " ".join(random.choice(WORDS, size)), "label": "aab"[number % 3]}
        for number, size in enumerate(SIZES[request.param])
    ]
    (folder / "text.jsonl").write_text("\n".join(json.dumps(document) for document in documents))
    path = folder / "recipe.toml"
    path.write_text(f"""
        task = "{request.param}"
        [data]
        path = "{folder / "text.jsonl"}"
        tokens = "characters"
        validation_fraction = 0.25
        {DATA[request.param]}
        [model]
        dim = 16
        depth = 2
        heads = 2
        initializer_range = 0.3
        {SHAPE[request.param]}
        per_device_train_batch_size = 2
        learning_rate = 0.01
        """)
    return path


@pytest.fixture(scope="module")
def one(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """The run of one process with the rows of both."""
    run = tmp_path_factory.mktemp("one") / "run"
    recipe = recipes.load(str(recipe_file), [*EXACT, "training.per_device_train_batch_size=4"])
    return run, train(recipe, run=run, progress=False)


# Launchers differ in what they tell the processes, which is the same for every task.
@pytest.mark.slow
@pytest.mark.parametrize("recipe_file", ["document_classification"], indirect=True, scope="module")
def test_two_processes_that_accelerate_starts_train_and_score_as_one(
    recipe_file: Path, one: tuple[Path, TrainingResult], tmp_path: Path
) -> None:
    run = tmp_path / "two"
    launch = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    ran = subprocess.run(
        [sys.executable, "-m", *launch, "-m", "longspan", "train", str(recipe_file), *EXACT, "--run", str(run)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("run folder:") == 1
    same_as_one(run, one)


def same_as_one(two: Path, one: tuple[Path, TrainingResult]) -> None:
    run, result = one
    expected = result.to_dict()
    found_result = json.loads((two / "metrics.json").read_text())
    assert (expected["processes"], found_result["processes"]) == (1, 2)
    assert expected["steps"] == found_result["steps"]
    assert found_result["validation"].keys() == expected["validation"].keys()
    assert found_result["validation"]["loss"] == pytest.approx(expected["validation"]["loss"], rel=1e-5)
    for key in ("train_loss", "validation_loss"):
        found, wanted = ([row[key] for row in r["history"] if key in row] for r in (found_result, expected))
        assert len(wanted) > 2
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=key)
    weights = load_file(two / "model.safetensors")
    wanted_weights = load_file(run / "model.safetensors")
    assert weights.keys() == wanted_weights.keys()
    for name, tensor in wanted_weights.items():
        # Sums of gradients in another order, in float32.
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def counted(run: Path) -> int:
    """The tokens that a run was trained on, as its last checkpoint says."""
    last = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((last / "trainer_state.json").read_text())
    return int(state["stateful_callbacks"]["Sessions"]["attributes"]["tokens"])


# What stops, goes on and is damaged is the same for every task, but for the states of segments.
@pytest.mark.slow
@pytest.mark.parametrize("recipe_file", ["language_modelling"], indirect=True, scope="module")
def test_two_processes_train_as_one_and_stop_and_go_on_together(
    recipe_file: Path, one: tuple[Path, TrainingResult], tmp_path: Path
) -> None:
    ran = in_two_processes(HERE / "two_processes.py", str(recipe_file), str(tmp_path), *EXACT)
    told = ran.stdout
    assert told.count("run folder:") == 1, told
    same_as_one(tmp_path / "two", one)
    for rank in (0, 1):
        assert f"process {rank} came to the last part" in told, told
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "interrupted", "damaged")]
    assert weights[0] == weights[1] == weights[2]
    # What both have done counts, before and after they were stopped.
    tokens = [counted(tmp_path / run) for run in ("whole", "interrupted", "damaged")]
    assert tokens[0] == tokens[1] == tokens[2] > 0
    again = train(recipes.load(str(tmp_path / "finished by one")), run=tmp_path / "finished by one", finish=True)
    assert (again.steps, again.stopped) == (5, "interrupted")
    # The newest checkpoint is damaged, which the first process alone says.
    assert told.count("checkpoint-5 is damaged (rng_state_1.pth has changed); resuming from") == 1
    # The last part ends one process, and the other does not wait for it.
    assert ran.returncode != 0
    assert "the last part ended with: another process of this training run stopped" in told
    assert not (tmp_path / "broken/metrics.json").exists()
