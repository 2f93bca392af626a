"""Half precision."""

from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.testing.models.subject import LENGTHS, NotApplicable, Subject, deviation, padded, positions_of

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
