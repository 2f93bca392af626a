"""No future in outputs or gradients."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from longspan.testing.models.subject import LENGTH, NotApplicable, Subject, deviation

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
