"""Weights divided among processes (FSDP2): the same steps as in one process, and a share of the memory."""

import json
from pathlib import Path

import numpy as np
import pytest
from torchrun import in_two_processes

from longspan import recipes, train
from longspan.errors import UserError
from longspan.training import processes

HERE = Path(__file__).parent
PROCESSES = 2
SETTINGS = ["model.dim=16", "model.depth=2", "model.heads=2", "model.dropout=0.0", "training.segment_length=8"]
SETTINGS += ['model.mixers=["additive","relative"]', "data.tokens=characters", "data.validation_fraction=0.3"]
SETTINGS += ["training.learning_rate=0.01", "training.lr_scheduler_type=constant", "training.logging_steps=1"]
SETTINGS += ["training.eval_strategy=steps", "training.eval_steps=2", "training.save_steps=2"]


def batch(rows: int) -> str:
    return f"training.per_device_train_batch_size={rows}"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("sharding"), np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mats"]
    documents = [{"text": " ".join(random.choice(words, size))} for size in (90, 40, 30, 60, 20, 50)]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, documents)))
    path = folder / "recipe.toml"
    path.write_text(f'task = "language_modelling"\n[data]\npath = "{folder / "text.jsonl"}"\n')
    return path


@pytest.mark.slow
def test_divided_weights_train_as_whole_ones(recipe_file: Path, tmp_path: Path) -> None:
    script = HERE / "sharded_processes.py"
    ran = in_two_processes(script, str(recipe_file), str(tmp_path), *SETTINGS, batch(1))
    output = ran.stdout
    for rank in range(PROCESSES):
        assert f"process {rank} trained every model" in output, output
        assert f"process {rank} trained a run" in output, output

    # Each process has its share of the weights and of the two moments of each; steps are 4 bytes for each weight.
    for rank in range(PROCESSES):
        used = json.loads((tmp_path / f"bytes-{rank}.json").read_text())
        assert used["weights"] == pytest.approx(used["whole"] / PROCESSES, rel=0.02)
        assert used["states"] == pytest.approx(2 * used["whole"] / PROCESSES, rel=0.02)
        assert used["left"] < 0.01 * used["whole"]

    # The run was saved by all and is continued by one, with the same steps as a run of one process.
    one = [*SETTINGS, batch(PROCESSES), "training.max_steps=8"]
    expected = train(recipes.load(str(recipe_file), one), run=tmp_path / "one", progress=False)
    found = train(recipes.load(str(recipe_file), one), run=tmp_path / "four", resume=True, progress=False)
    for key in ("train_loss", "validation_loss"):
        losses, wanted = ([row[key] for row in result.history if key in row] for result in (found, expected))
        assert len(wanted) == {"train_loss": 8, "validation_loss": 4}[key]
        # Sums of gradients in another order, in float32, and steps of Adam.
        np.testing.assert_allclose(losses, wanted, rtol=1e-5, err_msg=key)

    # One is killed, and the others say so in a sentence.
    assert ran.returncode != 0
    assert "process 0 ended with: another process of this training run stopped" in output, output
    assert not (tmp_path / "killed/metrics.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.fsdp=full_shard"], r"expected several processes for training\.fsdp, got one; start them with"),
        (["training.fsdp=offload"], r"expected training\.fsdp=full_shard or shard_grad_op, got 'offload'"),
        (
            ["training.fsdp=full_shard", "training.optim=adafactor"],
            r"optimizer .* got training\.optim=adafactor; choose",
        ),
        (["training.fsdp=full_shard", "training.fp16=true"], r"expected training\.fsdp or training\.fp16, got both"),
        (["training.fsdp=full_shard", "training.torch_compile=true"], r"or training\.torch_compile, got both"),
        (['training.fsdp_config={"version"=2}'], r"expected no training\.fsdp_config, .* got one; leave it out"),
    ],
)
def test_what_would_be_ignored_is_refused(settings: list[str], message: str, recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        train(recipes.load(str(recipe_file), [*SETTINGS, *settings]), run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_accelerates_own_sharding_is_refused(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=r"got accelerate's own FSDP \(--use_fsdp\), .* leave --use_fsdp out\."):
        train(recipes.load(str(recipe_file), SETTINGS), run=tmp_path / "run", progress=False)


def test_a_batch_that_these_processes_cannot_share_is_refused(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.load(str(recipe_file), [*SETTINGS, batch(3), "training.max_steps=2"])
    train(recipe, run=tmp_path / "run", progress=False)
    more = recipes.load(str(recipe_file), [*SETTINGS, batch(2), "training.max_steps=4"])
    with pytest.raises(UserError, match=r"expected 3 rows .* got 2 in 1; set .*per_device_train_batch_size=3\."):
        train(more, run=tmp_path / "run", resume=True, progress=False)
    assert processes.count() == 1
