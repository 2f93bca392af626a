"""Checks of the weights with which a mixer reads rows, none of them of what it may not see."""

import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.mixers.base import SHARES, Look
from longspan.testing.mixers.subject import NARROW, Subject, close, need, refused


def looks_are_weights_of_what_is_read(subject: Subject, dtype: torch.dtype) -> None:
    """No weight is negative, at padding, or later than a causal mixer may see; those that are shares add up to one."""
    # Short windows, so that most positions are outside.
    mixer = subject.build(dtype, **NARROW)
    for mask in subject.masks():
        b, t = mask.shape
        hidden = subject.inputs(b, t, dtype).masked_fill(~mask.unsqueeze(-1), float("nan"))
        for at in sorted({0, t // 2, t - 1}):
            _are_weights(mixer.look(hidden, mask, at=at), mask, mask[:, at], at if subject.causal else t - 1, dtype)
        _are_weights(mixer.look(hidden, mask), mask, mask.any(1), t - 1, dtype)


def looks_at_whole_rows_are_means(subject: Subject) -> None:
    """Without a position, weights are means over the real positions; of a causal mixer, those of the last real one."""
    mixer = subject.build(torch.float64, **NARROW)
    mask = subject.mask(4, 11, seed=0, hidden=0.3)
    mask[0, :4] = mask[1, 7:] = mask[2] = False
    b, t = mask.shape
    x = subject.inputs(b, t, torch.float64)
    whole, each = mixer.look(x, mask), [mixer.look(x, mask, at=at) for at in range(t)]
    last = (torch.arange(1, t + 1, device=x.device) * mask).argmax(1)
    for name, weights in _signed(whole).items():
        # Of padding they are zeros.
        by_position = torch.stack([_signed(look)[name] for look in each])
        mean = by_position.sum(0) / mask.sum(1).clamp_min(1).view(-1, 1, 1)
        close(weights, by_position[last, torch.arange(b, device=x.device)] if subject.causal else mean)
    one, alone = x[:1], mask[:1]
    found = mixer.look(one, alone).distances
    real = alone[0].nonzero().flatten().tolist()
    shares = [mixer.look(one, alone, at=at).distances for at in (real[-1:] if subject.causal else real)]
    known = [share for share in shares if share is not None]
    if found is not None and known:
        close(found, torch.stack(known).mean(0))
        close(found.sum(1), torch.ones_like(found[:, 0]))


def looks_are_refused(subject: Subject) -> None:
    """Mixers that show nothing refuse looks; others refuse positions outside the row, and looks at nothing."""
    mixer, x = subject.build(), subject.inputs(2, 5)
    if not subject.kind.capabilities.looks:
        refused(UserError, "looked at", lambda: mixer.look(x))
        return
    refused(UserError, "position", lambda: mixer.look(x, at=5))
    refused(UserError, "position", lambda: mixer.look(x, at=-1))
    refused(UserError, "position", lambda: mixer.look(x[:, :0]))
    if subject.kind.capabilities.structure is None:
        refused(UserError, "no structure", lambda: mixer.look(x, structure=()))


def _signed(look: Look) -> dict[str, Tensor]:
    """Return the weights of a look, and the difference in place of what adds and what subtracts."""
    found = dict(look.weights)
    if "subtracts" in found:
        found["adds"] = found["adds"] - found.pop("subtracts")
    return found


def _are_weights(look: Look, mask: Tensor, reads: Tensor, last: int, dtype: torch.dtype) -> None:
    b, t = mask.shape
    for name, found in {**look.weights, **look.gates}.items():
        need(found.shape == (b, found.shape[1], t), f"{name} of ({b}, {t}) positions are {tuple(found.shape)}")
        need(found.isfinite().all(), f"{name} are not finite")
        need((found.mT[~mask] == 0).all(), f"{name} of padding are not zero")
    for name, found in look.weights.items():
        need(found.dtype.itemsize >= 4, f"{name} are {found.dtype}")
        need((found >= 0).all(), f"{name} are negative")
        need((found[:, :, last + 1 :] == 0).all(), f"{name} are not zero at positions that are not seen yet")
        if name in SHARES:
            close(found.sum(2), reads.to(found.dtype).unsqueeze(1).expand(found.shape[:2]), dtype)
