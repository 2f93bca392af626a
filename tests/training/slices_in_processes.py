"""What four processes do with slices of the same rows, run by `torchrun`; see `test_slices_in_processes.py`."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import Trainer

from longspan import cli, mixers, recipes, train
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
from longspan.ops import slices
from longspan.training import processes
from longspan.training.context_parallel import ProcessSlices, process_slices

SMALL = {"vocab_size": 30, "dim": 16, "depth": 2, "heads": 4, "dropout": 0.0, "pad_token_id": 0}
SLIDING = ["--context", "sliding", "--window", "90", "--stride", "60"]
MIXERS = ["additive", "delta", "linear", "local"]


def main(recipe_file: str, folder: Path, cut_in_two: Sequence[str]) -> None:
    processes.connect()
    torch.set_num_threads(1)
    cut = process_slices(4)
    for length in (19, 3):
        language_models_agree(cut, length)
        classifiers_agree(cut, length)
    bytes_are_as_many_as_computed(cut)
    refuses_what_does_not_divide()
    refuses_other_rows(cut)
    assert cli.main(["train", recipe_file, *cut_in_two, "--run", str(folder / "cut")]) == 0
    classes = str(folder / "classes.toml")
    assert cli.main(["train", classes, *cut_in_two, "--run", str(folder / "cut classes")]) == 0
    assert cli.main(["evaluate", str(folder / "cut"), *SLIDING, "--json"]) == 0
    # Carried states need no second process; the first one says so, and the others end with it.
    assert cli.main(["evaluate", str(folder / "cut"), "--context", "carried"]) == (0 if processes.rank() else 2)
    print(f"process {processes.rank()} came to the last part", flush=True)
    is_killed_in_one(recipe_file, folder, cut_in_two)


def language_models_agree(cut: ProcessSlices, length: int) -> None:
    embeddings = {"kind": "tokens", "ngrams": [3], "ngram_buckets": 50}
    options = {"mixer_options": {"local": {"radius": 7}}, "position": "learned", "short_convolution": 4}
    config = LongspanConfig(**SMALL, mixers=MIXERS, causal=True, embeddings=embeddings, **options)
    model = seeded(LongspanForCausalLM, config)
    ids, mask = inputs(length)
    targets = torch.where(mask > 0, ids.roll(-1, 1), -100)
    items = int((targets != -100).sum())
    whole = model(ids, mask, shift_labels=targets, num_items_in_batch=items)
    parts = [cut.cut(each, padding) for each, padding in ((ids, 0), (mask, 0), (targets, -100))]
    with slices.entered(cut):
        own = model(parts[0], parts[1], shift_labels=parts[2], num_items_in_batch=items)
        close(own.losses, cut.cut(whole.losses, 0), 1e-12)
        same_gradients(model, own.loss, whole.loss)


def classifiers_agree(cut: ProcessSlices, length: int) -> None:
    head = {"kind": "classification", "pooling": "attention", "wide": False}
    shape = {"mixers": ["additive", "local"], "mixer_options": {"local": {"radius": 3}}, "short_convolution": 3}
    model = seeded(
        LongspanForSequenceClassification, LongspanConfig(**SMALL, **shape, position="none", num_labels=3, head=head)
    )
    (ids, mask), labels = inputs(length), torch.tensor([0, 2])
    whole = model(ids, mask, labels=labels)
    with slices.entered(cut):
        own = model(cut.cut(ids, 0), cut.cut(mask, 0), labels=labels)
        close(own.logits, whole.logits, 1e-12)
        same_gradients(model, own.loss / cut.count, whole.loss)


def seeded(kind: Any, config: LongspanConfig) -> Any:
    torch.manual_seed(0)
    return kind(config).double()


def inputs(length: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 30, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, : length // 3] = 0
    return ids, mask


def same_gradients(model: torch.nn.Module, own: Tensor, whole: Tensor) -> None:
    parameters = list(model.parameters())
    expected = torch.autograd.grad(whole, parameters, allow_unused=True, materialize_grads=True)
    found = torch.autograd.grad(own, parameters, allow_unused=True, materialize_grads=True)
    for one, other in zip(found, expected, strict=True):
        dist.all_reduce(one)
        close(one, other, 1e-9)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def bytes_are_as_many_as_computed(cut: ProcessSlices) -> None:
    """Per layer and row, what others sum up to, in float32: vectors and normalisers, or matrices."""
    dim, heads, slots = 64, 4, 8
    states = {
        ("additive", ""): 2 * (dim + heads),
        ("competitive_lookup", ""): 2 * (dim + heads),
        ("competitive_gate", ""): 2 * dim + heads,
        ("recurrent", "sru"): 2 * dim,
        ("messages", ""): slots * (dim + 2),
        ("linear", ""): dim * dim // heads + dim,
        ("gated_linear", ""): dim * dim // heads + heads,
        ("delta", ""): 2 * dim * dim // heads,
    }
    for (name, cell), numbers in states.items():
        options = {"cell": cell} if cell else {"slots": slots} if name == "messages" else {"heads": heads}
        mixer, received = mixers.build(name, dim, causal=True, **options), []
        for length in (512, 8192):
            before = cut.received
            with slices.entered(cut), torch.no_grad():
                mixer(torch.zeros(1, length // cut.count, dim))
            received.append(cut.received - before)
        computed = 4 * (cut.count - 1) * numbers
        assert received == [computed, computed], (name, received, computed)


def refuses_other_rows(cut: ProcessSlices) -> None:
    rows, device = torch.arange(6).view(2, 3), torch.device("cpu")
    cut.check_same({"rows": rows}, device)
    other = rows.flip(0) if cut.number == 2 else rows
    with pytest.raises(UserError, match="the same rows in all processes"):
        cut.check_same({"rows": other}, device)


def refuses_what_does_not_divide() -> None:
    with pytest.raises(UserError, match="context_parallel=3 divides, got 4"):
        process_slices(3)


def is_killed_in_one(recipe_file: str, folder: Path, cut_in_two: Sequence[str]) -> None:
    usual = Trainer.training_step

    def training_step(self: Trainer, *arguments: Any, **options: Any) -> Tensor:
        if self.state.global_step == 1 and processes.rank() == 1:
            # torchrun would end the other processes, which are to notice by themselves.
            os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, *arguments, **options)

    try:
        with patch.object(Trainer, "training_step", training_step):
            train(recipes.load(recipe_file, list(cut_in_two)), run=folder / "broken", progress=False)
    except UserError as error:
        print(f"the last part ended with: {error}", flush=True)
        raise
    finally:
        os.kill(os.getppid(), signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
