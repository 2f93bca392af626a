"""Padding and other rows of a batch."""

import itertools
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.machine.bars import hidden_bars
from longspan.testing.models.subject import (
    LENGTH,
    LENGTHS,
    NotApplicable,
    Subject,
    deviation,
    padded,
    positions_of,
    without_dropout,
)


def padding_on_the_right(subject: Subject) -> Iterator[tuple[str, float]]:
    """Padding on the right changes nothing at real positions, in a batch and in a single row."""
    yield from _padding(subject, "right")


def padding_on_the_left(subject: Subject) -> Iterator[tuple[str, float]]:
    """Padding on the left changes nothing at real positions, in a batch and in a single row."""
    yield from _padding(subject, "left")


def _padding(subject: Subject, side: str) -> Iterator[tuple[str, float]]:
    subject.require("attention_mask")
    ids, pad = subject.draw(len(LENGTHS)), subject.config.pad_token_id or 0
    counted = subject.counts_positions and side == "left"
    whole = [
        subject.read_padded(ids[row : row + 1, :length], None, torch.arange(length).unsqueeze(0) if counted else None)
        for row, length in enumerate(LENGTHS)
    ]
    for more in (0, 6):
        rows, mask = padded(ids, LENGTHS, side, more, pad)
        positions = positions_of(mask) if counted else None
        found = subject.read_padded(rows, mask, positions)
        yield "in a batch", _largest(subject, found, mask, whole)
    for row in range(len(LENGTHS)):
        alone, real = rows[row : row + 1], mask[row : row + 1]
        found = subject.read_padded(alone, real, None if positions is None else positions[row : row + 1])
        yield "batch size 1", _largest(subject, found, real, whole[row : row + 1])


def _largest(subject: Subject, found: Tensor, mask: Tensor, whole: list[Tensor]) -> float:
    # The target of an encoder and a decoder has no padding.
    real = [row if subject.task == "seq2seq" else row[kept.bool()] for row, kept in zip(found, mask, strict=True)]
    return max(deviation(row, one[0]) for row, one in zip(real, whole, strict=True))


def limit_on_the_left(subject: Subject) -> str:
    """Return why nothing claims that padding on the left changes nothing; "" where something does."""
    names = (name for name, _ in subject.model.named_modules() if "position" in name.rpartition(".")[2])
    table = next((name for name in names if "relative" not in name and "rotary" not in name), "")
    if table and not subject.counts_positions:
        return f"positions are absolute ({table}), and forward takes no position_ids"
    return ""


def other_rows(subject: Subject) -> Iterator[tuple[str, float]]:
    """Other rows of a batch change nothing."""
    ids = subject.draw(3)
    expected = subject.read_padded(ids, None)
    for row in range(3):
        changed = subject.draw(3, seed=1)
        changed[row] = ids[row]
        yield "other tokens", deviation(subject.read_padded(changed, None)[row], expected[row])
        yield "alone", deviation(subject.read_padded(ids[row : row + 1], None)[0], expected[row])
    yield "another order", deviation(subject.read_padded(ids.flip(0), None).flip(0), expected)
    if subject.accepts("attention_mask"):
        full = torch.ones_like(ids)
        yield "a mask of ones", deviation(subject.read_padded(ids, full), expected)


def earlier_inputs(subject: Subject) -> Iterator[tuple[str, float]]:
    """Earlier inputs change nothing: a model keeps no state outside its cache."""
    ids, expected = subject.draw(2), subject.read_padded(subject.draw(2), None)
    subject.read_padded(subject.draw(2, 3, seed=1), None)
    yield "after shorter rows", deviation(subject.read_padded(ids, None), expected)
    if subject.task == "causal" and subject.accepts("use_cache"):
        subject.read(subject.draw(2, seed=1), use_cache=True)
        yield "after a cached pass", deviation(subject.read(ids), expected)
        subject.read(subject.draw(2, seed=1), use_cache=True)
        yield "with a new cache", deviation(subject.read(ids, use_cache=True), expected)


_NOWS = (0, 6, 14)


def future_in_outputs(subject: Subject) -> Iterator[tuple[str, float]]:
    """Later tokens change no output."""
    _need_causal(subject)
    ids, other = subject.draw(2), subject.draw(2, seed=1)
    expected = subject.read(ids)
    for now in _NOWS:
        changed = torch.cat([ids[:, : now + 1], other[:, now + 1 :]], 1)
        found = subject.read(changed)
        yield f"position {now}", deviation(found[:, : now + 1], expected[:, : now + 1])


def future_in_gradients(subject: Subject) -> Iterator[tuple[str, float]]:
    """No gradient of an output reaches the embedding of a later token."""
    _need_causal(subject)
    ids, kept = subject.draw(1), list[Tensor]()

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        kept.append(leaf)
        # Some models change it in place.
        return leaf.clone()

    reader = subject.model.get_decoder() if subject.task == "seq2seq" else subject.model
    hook = reader.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = subject.read(ids)
            # Source and target may share a table: the target is read last.
            leaf = kept[-1] if kept else None
            if leaf is None or leaf.shape[1] != LENGTH:
                raise NotApplicable("no table gives an embedding for each token")
            for now in _NOWS:
                total = (logits[:, now] * torch.linspace(-1, 1, logits.shape[-1])).sum()
                (found,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
                if found is None:
                    raise NotApplicable("outputs have no gradient of input embeddings")
                later = found[:, now + 1 :].abs().max() if bool(found.isfinite().all()) else torch.tensor(torch.inf)
                yield f"position {now}", float(later / found.abs().max().clamp_min(1e-30))
    finally:
        hook.remove()


def _need_causal(subject: Subject) -> None:
    if subject.task == "masked":
        raise NotApplicable("it reads both directions")


_NO_MASK = "the model warns that it does not use attention_mask"
_GLOBAL = "the first and the last block of a row are global, wherever padding begins"

DOCUMENTED: dict[str, dict[str, str]] = {
    "big_bird": {
        "padding-on-the-right": _GLOBAL,
        "padding-on-the-left": _GLOBAL,
        "training-mode": "blocks are drawn at random in training only",
    },
    "bigbird_pegasus": {
        "padding-on-the-right": _GLOBAL,
        "training-mode": "blocks are drawn at random in training only",
    },
    "reformer": {
        "padding-on-the-right": "padding, too, is sorted into the chunks of LSH attention",
        **dict.fromkeys(("float16", "bfloat16"), "gradients need training mode, and rows that fill their chunks"),
    },
    "rwkv": dict.fromkeys(("padding-on-the-left", "cached-padding", "generation"), _NO_MASK),
    "xlnet": {"future-in-outputs": "attention is bidirectional without perm_mask"},
}


_LENGTHS = (9, 5, 7)
#: Masks of transformers separate packed documents where they are made with position_ids.
_SEPARATES = re.compile(r"create_causal_mask\([^)]*position_ids|\"position_ids\": position_ids")


def packing(subject: Subject) -> Iterator[tuple[str, float]]:
    """Documents packed in a row, with what `DataCollatorWithFlattening` says about them, are read as if separate."""
    own = subject.accepts("document_ids")
    if subject.task == "seq2seq" or not (subject.counts_positions or own):
        raise NotApplicable("forward takes no position_ids")
    ids = subject.draw(1)
    ends = torch.tensor([0, *_LENGTHS]).cumsum(0)
    numbers = torch.arange(len(_LENGTHS), dtype=torch.int32)
    numbered = numbers.repeat_interleave(torch.tensor(_LENGTHS)).unsqueeze(0)
    more: dict[str, Any] = {"position_ids": torch.cat([torch.arange(length) for length in _LENGTHS]).unsqueeze(0)}
    if own:
        more["document_ids"] = numbered.long()
    elif any(kind.kind is kind.VAR_KEYWORD for kind in subject.parameters.values()):
        more["seq_idx"] = numbered
        more |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends.int())
        more |= dict.fromkeys(("max_length_q", "max_length_k"), max(_LENGTHS))
    found = subject.read(ids, **more)
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        alone = subject.read(ids[:, begin:end])
        yield f"document {number + 1}", deviation(found[:, begin:end], alone)


def limit_of_packing(subject: Subject) -> str:
    """Return why nothing claims that packed documents are separate; "" where something does."""
    if subject.task == "masked" and not subject.accepts("document_ids"):
        return "it is an encoder"
    if subject.stateful and not any(word in subject.source for word in ("cu_seq_lens", "seq_idx")):
        return "its recurrent layers take no boundaries of documents"
    if subject.accepts("document_ids") or _SEPARATES.search(subject.source):
        return ""
    return "its attention mask is made without position_ids"


#: Parts of what PyTorch says where an operation is missing for a type.
_LACKING = ("not implemented for", "Expected mat_a to be", "Unsupported dtype")


def float16(subject: Subject) -> Iterator[tuple[str, float]]:
    """Outputs and gradients in float16 are finite."""
    yield from _finite(subject, torch.float16)


def bfloat16(subject: Subject) -> Iterator[tuple[str, float]]:
    """Outputs and gradients in bfloat16 are finite."""
    yield from _finite(subject, torch.bfloat16)


def _finite(subject: Subject, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    model = subject.build(dtype)
    ids = subject.draw(len(LENGTHS))
    cases: list[tuple[str, Tensor, Tensor | None]] = [("without padding", ids, None)]
    if subject.accepts("attention_mask") and subject.task != "seq2seq":
        sides = ("left", "right") if subject.task == "causal" else ("right",)
        cases += [(f"padding on the {side}", *padded(ids, LENGTHS, side, 2, 0)) for side in sides]
    for where, rows, mask in cases:
        more: dict[str, Tensor] = {}
        if mask is not None and subject.counts_positions:
            more["position_ids"] = positions_of(mask)
        try:
            with torch.enable_grad():
                logits = subject.read(rows, mask, model, **more)
                real = logits if mask is None else logits[mask.bool()]
                real.float().square().mean().backward()
        except (RuntimeError, NotImplementedError) as error:
            if any(words in str(error) for words in _LACKING):
                told = str(error).strip().partition("\n")[0]
                raise NotApplicable(f"PyTorch lacks an operation on this device: {told}") from error
            raise
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        model.zero_grad()
        exact = subject.read(rows, mask, **more)
        expected = exact if mask is None else exact[mask.bool()]
        yield f"gradients, {where}", 0.0 if finite else float("inf")
        yield where, deviation(real.detach(), expected)


def training_mode(subject: Subject) -> Iterator[tuple[str, float]]:
    """Without dropout, training mode gives the outputs of evaluation."""
    ids = subject.draw(2)
    model = without_dropout(subject.build()).train()
    yield "outputs", deviation(subject.read(ids, model=model), subject.read(ids))


def gradient_checkpointing(subject: Subject) -> Iterator[tuple[str, float]]:
    """Gradient checkpointing changes neither outputs nor gradients."""
    if not subject.kind.supports_gradient_checkpointing:
        raise NotApplicable("it does not support gradient checkpointing")
    model = without_dropout(subject.build()).train()
    expected = _gradients(subject, model)
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            # Without it, nothing before the first layer would have a gradient.
            model.enable_input_require_grads()
        found = _gradients(subject, model)
        where = f"use_reentrant={reentrant}"
        yield f"outputs, {where}", deviation(found[0], expected[0])
        yield f"gradients, {where}", deviation(found[1], expected[1])


def _gradients(subject: Subject, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    model.zero_grad(set_to_none=False)
    with torch.enable_grad():
        logits = subject.read(subject.draw(2), model=model)
        logits.square().mean().backward()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    return logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def saving(subject: Subject) -> Iterator[tuple[str, float]]:
    """A model that was saved and loaded gives the same outputs."""
    ids = subject.draw(2)
    with tempfile.TemporaryDirectory() as folder, hidden_bars():
        subject.model.save_pretrained(folder)
        more = {} if subject.attention is None else {"attn_implementation": subject.attention}
        loaded = subject.kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **more).eval()
    yield "outputs", deviation(subject.read(ids, model=loaded), subject.read(ids))


def logits_to_keep(subject: Subject) -> Iterator[tuple[str, float]]:
    """`logits_to_keep` returns the last logits of the whole pass."""
    subject.require("logits_to_keep")
    ids = subject.draw(2)
    expected = subject.read(ids)
    for number in (1, 3):
        found = subject.read(ids, logits_to_keep=number)
        if found.shape != expected[:, -number:].shape:
            raise AssertionError(f"logits_to_keep={number} returns logits of {tuple(found.shape)}")
        yield f"{number}", deviation(found, expected[:, -number:])


def compilation(subject: Subject) -> Iterator[tuple[str, float]]:
    """A compiled model gives the same outputs."""
    ids = subject.draw(2)
    torch.compiler.reset()
    compiled = torch.compile(subject.build())
    yield "outputs", deviation(subject.read(ids, model=compiled), subject.read(ids))
    other = subject.draw(3, 13)
    yield "another shape", deviation(subject.read(other, model=compiled), subject.read(other))
