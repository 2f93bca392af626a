"""What must change nothing: training mode, checkpointing, saving, `logits_to_keep`, other attention, compilation."""

import tempfile
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.machine.bars import hidden_bars
from longspan.testing.models.subject import NotApplicable, Subject, deviation, without_dropout


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
    if not subject.accepts("logits_to_keep"):
        raise NotApplicable("forward takes no logits_to_keep")
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
