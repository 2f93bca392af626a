"""What a mixer shows of how it reads rows: weights from which its outputs follow, without seeing what it may not."""

import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.mixers._looks import SHARES, Look
from longspan.testing.mixers.subject import NARROW, TOLERANCE, Subject, close, need, random_cuts, refused


def looks_give_the_outputs(subject: Subject, dtype: torch.dtype) -> None:
    """The output at any position follows from the weights that it shows there.

    No weight is negative, at padding, or later than a causal mixer may see; those that are shares add up to one.
    """
    # Short windows, so that most positions are outside.
    mixer = subject.build(dtype, **NARROW)
    for mask in subject.masks():
        b, t = mask.shape
        x = subject.inputs(b, t, dtype)
        hidden = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
        y, whole = mixer(x, mask), mixer(x)
        for at in sorted({0, t // 2, t - 1}):
            look = mixer.look(hidden, mask, at=at)
            _are_weights(look, mask, mask[:, at], at if subject.causal else t - 1, dtype)
            # In the type of x, so that its rounding is that of outputs.
            close(mixer.reproduce(hidden, mask, look), y[:, at])
            close(mixer.reproduce(x, None, mixer.look(x, at=at)), whole[:, at])


def looks_continue_a_state(subject: Subject, dtype: torch.dtype) -> None:
    """The output at any position of a row that continues a stream follows from what it shows there.

    Weights are those that the positions have in the whole row; where they are shares, they add up to one at most.
    """
    mixer = subject.build(dtype, **NARROW)
    for number, mask in enumerate(subject.masks(rounds=2)):
        b, t = mask.shape
        x = subject.inputs(b, t, dtype)
        start, length = mixer.init_state(b), mixer.exact_length
        for cut in {0, random_cuts(t, number)[0] - 1}:
            _, state = mixer.step(x[:, :cut], start, mask[:, :cut])
            rest, real = x[:, cut:], mask[:, cut:]
            hidden = rest.masked_fill(~real.unsqueeze(-1), float("nan"))
            y, _ = mixer.step(rest, state, real)
            for at in sorted({0, (t - cut) // 2, t - cut - 1}):
                look = mixer.look(hidden, real, at=at, state=state)
                _are_weights(look, real, real[:, at], at, dtype)
                close(mixer.reproduce(hidden, real, look), y[:, at])
                if length is None or t <= length:
                    whole = mixer.look(x, mask, at=cut + at).weights
                    for name, weights in look.weights.items():
                        close(weights, whole[name][:, :, cut:], dtype)


def looks_at_whole_rows_are_means(subject: Subject) -> None:
    """Without a position, weights are means over the real positions; of a causal mixer, those of the last real one."""
    mixer = subject.build(torch.float64, **NARROW)
    mask = subject.mask(4, 11, seed=0, hidden=0.3)
    mask[0, :4] = mask[1, 7:] = mask[2] = False
    b, t = mask.shape
    x = subject.inputs(b, t, torch.float64)
    whole, each = mixer.look(x, mask), [mixer.look(x, mask, at=at) for at in range(t)]
    _are_weights(whole, mask, mask.any(1), t - 1, torch.float64)
    need(subject.causal == (whole.at is not None), "only causal mixers show what the last position reads")
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
    if not (subject.causal and subject.kind.capabilities.streaming):
        refused(UserError, "state", lambda: mixer.look(x, state=()))
    elif subject.takes_context:
        state = mixer.init_state(2, context=x)
        refused(UserError, "without a context", lambda: mixer.look(x, state=state))
    refused(UserError, "position", lambda: mixer.look(x, at=5))
    refused(UserError, "position", lambda: mixer.look(x, at=-1))
    refused(UserError, "position", lambda: mixer.look(x[:, :0]))
    if not subject.causal:
        refused(UserError, "whole rows", lambda: mixer.reproduce(x, None, mixer.look(x)))


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
        if name in SHARES and look.state is not None:
            need((found.sum(2) <= 1 + TOLERANCE[dtype]).all(), f"{name} add up to more than one")
        elif name in SHARES:
            close(found.sum(2), reads.to(found.dtype).unsqueeze(1).expand(found.shape[:2]), dtype)
