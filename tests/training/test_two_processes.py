"""Two processes under `torchrun`, each with rows of its own, train as one process with the rows of both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longspan import recipes
from longspan.train import train

HERE = Path(__file__).parent


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"]
    documents = [" ".join(random.choice(words, size)) for size in (150, 40, 3, 90, 60, 20, 70, 30)]
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": document}) for document in documents))
    path = tmp_path / "recipe.toml"
    path.write_text(f"""
        task = "language_modelling"
        [data]
        path = "{tmp_path / "text.jsonl"}"
        tokens = "characters"
        validation_fraction = 0.3
        [model]
        dim = 16
        depth = 2
        heads = 2
        mixers = ["additive", "relative"]
        initializer_range = 0.3
        [training]
        segment_length = 16
        per_device_train_batch_size = 2
        learning_rate = 0.01
        max_steps = 8
        """)
    return path


def torchrun(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )


def test_two_processes_train_as_one_with_all_rows(recipe_file: Path, tmp_path: Path) -> None:
    # Dropout would draw other numbers, and Adam makes whole steps of what rounding leaves of gradients that are zero.
    settings = ["model.dropout=0.0", "training.optim=sgd", "training.learning_rate=0.5"]
    settings += ["training.gradient_accumulation_steps=2"]
    ran = torchrun("-m", "--", "longspan", "train", str(recipe_file), *settings, "--run", str(tmp_path / "two"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("run folder:") == 1
    one = train(
        recipes.load(str(recipe_file), [*settings, "training.per_device_train_batch_size=4"]),
        tmp_path / "one",
        progress=False,
    )
    two = json.loads((tmp_path / "two/metrics.json").read_text())
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (one["steps"], one["padding_fraction"]) == (two["steps"], two["padding_fraction"])
    assert two["validation"]["loss"] == pytest.approx(one["validation"]["loss"], rel=1e-5)
    found, wanted = ([row["train_loss"] for row in r["history"] if "train_loss" in row] for r in (two, one))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    weights = load_file(tmp_path / "two/model.safetensors")
    expected = load_file(tmp_path / "one/model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        # Sums of gradients in another order, in float32.
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def test_processes_stop_and_go_on_together(recipe_file: Path, tmp_path: Path) -> None:
    ran = torchrun(str(HERE / "two_processes.py"), str(recipe_file), str(tmp_path))
    for rank in (0, 1):
        assert f"process {rank} came to the last part" in ran.stdout, ran.stderr
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "interrupted")]
    assert weights[0] == weights[1]
    # The last part fails in one process, and the other does not wait for it.
    assert ran.returncode != 0
    assert "process 1 breaks down" in ran.stderr
    assert not (tmp_path / "broken/metrics.json").exists()
