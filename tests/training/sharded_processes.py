"""What two processes do together with divided weights, run by `torchrun`; see `test_sharding.py`."""

import copy
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from transformers import PreTrainedModel, Trainer

from longspan import mixers, recipes, train
from longspan.errors import UserError
from longspan.models import LongspanForCausalLM, LongspanForSequenceClassification
from longspan.training import processes
from longspan.training.optimizers import Muon, RowwiseAdam, clip_gradients
from longspan.training.sharding import Shards, local_of

ROWS, LENGTH, STEPS = 4, 8, 2
SMALL: dict[str, Any] = {"vocab_size": 41, "dim": 16, "depth": 2, "heads": 2, "dropout": 0.0, "initializer_range": 0.3}
SMALL |= {"position": "learned", "max_positions": STEPS * LENGTH}
#: What is unusual about models, for divided weights.
MODELS: dict[str, dict[str, Any]] = {
    # nll is called in place of forward, with the tables of embeddings.
    "adaptive": {"mixers": ["additive"], "cutoffs": [10, 20]},
    # A weight without dimensions, which has one where it is divided.
    "sinusoidal": {"mixers": ["messages"], "position": "sinusoidal"},
    # One block in all layers.
    "shared": {"mixers": ["competitive_gate"], "share_layers": True},
    "convolved": {"mixers": ["linear"], "short_convolution": 4, "forget": "input"},
}


def main(recipe_file: str, folder: Path, overrides: Sequence[str]) -> None:
    processes.connect()
    for name in mixers.names():
        trains_as_one(name, {"mixers": [name]}, causal=mixers.load(name).capabilities.causal)
    for name, settings in MODELS.items():
        trains_as_one(name, settings, causal=True)
    carries_states_as_one()
    has_a_share_of_all_bytes(folder)
    steps_as_one_with_every_optimizer()
    print(f"process {processes.rank()} trained every model", flush=True)
    recipe = recipes.load(recipe_file, [*overrides, "training.fsdp=full_shard", "training.max_steps=4"])
    train(recipe, run=folder / "four", progress=False)
    print(f"process {processes.rank()} trained a run", flush=True)
    is_killed(recipe_file, folder, overrides)


def built(settings: dict[str, Any], *, causal: bool = True) -> PreTrainedModel:
    torch.manual_seed(0)
    kind = LongspanForCausalLM if causal else LongspanForSequenceClassification
    more = {} if causal else {"num_labels": 3}
    # Sums in another order differ by 2^-52 of the largest term.
    return kind(kind.configured(**{**SMALL, **settings}, causal=causal, **more)).double()


def curve(trained: nn.Module, batch: dict[str, Tensor], optimizer: Any = None) -> list[float]:
    """Mean losses of the rows of all processes, of which each trains on its own."""
    optimizer = AdamW(trained.parameters(), 1e-2) if optimizer is None else optimizer
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = trained(**batch).loss
        loss.backward()
        clip_gradients(trained.parameters(), 0.1)
        optimizer.step()
        losses.append(processes.total([float(loss.detach())])[0] / processes.count())
    return losses


def batches(*, causal: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rows of all processes, and those of this one."""
    ids = torch.randint(3, SMALL["vocab_size"], (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    every = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    every["labels"] = ids if causal else torch.arange(ROWS) % 3
    return every, {name: values.chunk(processes.count())[processes.rank()] for name, values in every.items()}


def trains_as_one(name: str, settings: dict[str, Any], *, causal: bool) -> None:
    model, (every, own) = built(settings, causal=causal), batches(causal=causal)
    one, whole = copy.deepcopy(model), copy.deepcopy(model)
    expected = curve(one, every)
    curves = {"DDP": curve(DistributedDataParallel(whole), own)}
    shards = Shards(model, reshard=True)
    curves["FSDP2"] = curve(shards.module, own)
    for kind, found in curves.items():
        # In float64 a weight without dimensions lets sinusoids stay in float32, and one with a dimension does not.
        rtol = 1e-7 if name == "sinusoidal" else 1e-10
        torch.testing.assert_close(found, expected, rtol=rtol, atol=0, msg=f"{name} with {kind}: {found}, {expected}")
    assert all(weight.isnan().all() for weight in model.parameters())
    with shards.gathered():
        same(model, whole, name, 1e3 * rtol)
        with torch.no_grad():
            # Each process makes as many forward passes as it has rows to score, here a number of its own.
            scored = [model(**every).loss for _ in range(1 + processes.rank())]
            torch.testing.assert_close(scored[0], one.eval()(**every).loss, rtol=rtol, atol=0)
    if name in MODELS:
        again = curve(shards.module, own)
        assert again[-1] < expected[-1], name


def same(model: nn.Module, other: nn.Module, name: str, rtol: float) -> None:
    for (key, found), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        # Adam takes steps of 1e-2 by what rounding leaves of gradients that are zero, over 1e-8.
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-2 * rtol, msg=f"{name}: {key}")


def carries_states_as_one() -> None:
    """Steps that begin with the states after the last one, through blocks that are not whole when they are called."""
    model, (every, own) = (
        built({"mixers": ["additive", "relative"], "ngrams": [2], "ngram_buckets": 16}),
        batches(causal=True),
    )
    one = copy.deepcopy(model)
    shards = Shards(model, reshard=True)
    found = [states_carried(model, shards.module, own), states_carried(one, one, every)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=0)


def states_carried(plain: Any, trained: nn.Module, batch: dict[str, Tensor]) -> list[float]:
    optimizer, losses = torch.optim.SGD(trained.parameters(), 0.1), []
    states = plain.base_model.init_states(len(batch["input_ids"]))
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs = trained(**batch, past_key_values=states, use_cache=True)
        outputs.loss.backward()
        optimizer.step()
        states = (outputs.get("cache") or outputs.past_key_values).detach()
        losses.append(processes.total([float(outputs.loss.detach())])[0] / processes.count())
    return losses


def has_a_share_of_all_bytes(folder: Path) -> None:
    model = built({"mixers": ["additive"], "dim": 96, "heads": 4})
    whole = sum(weight.nbytes for weight in model.parameters())
    shards = Shards(model, reshard=True)
    optimizer = AdamW(shards.module.parameters())
    curve(shards.module, batches(causal=True)[1], optimizer)
    weights = sum(local_of(weight).nbytes for weight in shards.module.parameters())
    states = sum(local_of(value).nbytes for state in optimizer.state.values() for value in state.values())
    left = sum(weight.untyped_storage().nbytes() for weight in model.parameters())
    (folder / f"bytes-{processes.rank()}.json").write_text(
        json.dumps({"whole": whole, "weights": weights, "states": states, "left": left})
    )


def steps_as_one_with_every_optimizer() -> None:
    """Muon and the optimizer of tables, whose states are saved as those of whole weights and divided when loaded."""
    settings = {"mixers": ["additive"], "ngrams": [2], "ngram_buckets": 17}
    every, own = batches(causal=True)
    for kind in (Muon, RowwiseAdam, AdamW):
        model = built(settings)
        one = copy.deepcopy(model)
        shards = Shards(model, reshard=False)
        optimizers = []
        for trained in (one, shards.module):
            weights = [weight for weight in trained.parameters() if weight.ndim == 2]
            optimizers.append(kind(weights, lr=0.01))
        shards.share_states(optimizers[1])
        expected, found = curve(one, every, optimizers[0]), curve(shards.module, own, optimizers[1])
        # Newton-Schulz iterations and second moments of rows are in float32.
        rounding = 1e-10 if kind is AdamW else 1e-5
        torch.testing.assert_close(found, expected, rtol=rounding, atol=0, msg=kind.__name__)
        saved, wanted = optimizers[1].state_dict(), optimizers[0].state_dict()
        torch.testing.assert_close(saved["state"], wanted["state"], rtol=1e-3, atol=1e-6)
        before = {part: dict(state) for part, state in optimizers[1].state.items()}
        optimizers[1].load_state_dict(wanted)
        for part, state in before.items():
            for name, value in state.items():
                loaded = optimizers[1].state[part][name]
                assert type(loaded) is type(value)
                # PyTorch loads states in the type of their weights.
                torch.testing.assert_close(local_of(loaded), local_of(value), rtol=1e-3, atol=1e-6, check_dtype=False)


def is_killed(recipe_file: str, folder: Path, overrides: Sequence[str]) -> None:
    """One process ends in the middle of a step, and the others do not wait for it."""
    usual = Trainer.training_step

    def training_step(self: Trainer, *arguments: Any, **options: Any) -> Tensor:
        if self.state.global_step == 2 and processes.rank() == 1:
            # torchrun would end the other processes, which are to notice by themselves.
            os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, *arguments, **options)

    recipe = recipes.load(recipe_file, [*overrides, "training.fsdp=full_shard", "training.max_steps=4"])
    try:
        with patch.object(Trainer, "training_step", training_step):
            train(recipe, run=folder / "killed", progress=False)
    except UserError as error:
        print(f"process {processes.rank()} ended with: {error}", flush=True)
        raise
    finally:
        os.kill(os.getppid(), signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
