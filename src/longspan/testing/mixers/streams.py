"""Checks of mixers that continue from a state."""

import functools
import io

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from longspan.errors import UserError
from longspan.testing.mixers.subject import NARROW, Subject, close, in_steps, need, random_cuts, refused


def streaming_in_any_cuts_is_the_whole(subject: Subject, dtype: torch.dtype) -> None:
    """Read whole, in any cuts or token by token, the outputs agree: the state holds all there is to know, and nothing
    else does."""
    mixer = subject.build(dtype)
    for seed, mask in enumerate(subject.masks()):
        b, t = mask.shape
        x = subject.inputs(b, t, dtype).masked_fill(~mask.unsqueeze(-1), float("nan"))
        for sizes in (random_cuts(t, seed), [1] * min(t, 20)):
            end = sum(sizes)
            close(in_steps(mixer, x, sizes, mixer.init_state(b), mask), mixer(x[:, :end], mask[:, :end]))


def steps_of_no_positions_change_nothing(subject: Subject) -> None:
    """A step of no positions returns none, and the state as it was."""
    mixer = subject.build()
    _, state = mixer.step(subject.inputs(2, 5), mixer.init_state(2))
    for mask in (None, subject.full(2, 0)):
        y, after = mixer.step(torch.zeros(2, 0, subject.dim, device=subject.device), state, mask)
        need(y.shape == (2, 0, subject.dim), f"an output of {tuple(y.shape)}")
        torch.testing.assert_close(after, state, rtol=0, atol=0)


def reset_rows_start_over(subject: Subject, dtype: torch.dtype, holes: bool) -> None:
    """`reset` lets some rows start over, and the others continue."""
    mixer, x = subject.build(dtype), subject.inputs(3, 40, dtype)
    mask = subject.mask(3, 40, seed=4, hidden=0.3 if holes else -1)
    rows, state, parts = torch.tensor([True, False, True], device=subject.device), mixer.init_state(3), []
    for start, end in ((0, 1), (1, 25), (25, 26), (26, 40)):
        if start == 25:
            state = mixer.reset(state, rows)
        y, state = mixer.step(x[:, start:end], state, mask[:, start:end] if holes else None)
        parts.append(y)
    y = torch.cat(parts[2:], 1)
    close(y[rows], mixer(x[rows, 25:], mask[rows, 25:]))
    close(y[~rows], mixer(x[~rows], mask[~rows])[:, 25:])


def a_state_is_as_large_as_claimed(subject: Subject) -> None:
    """A row's state holds `state_size` numbers, and stops growing if `bounded_state`.

    What its tensors keep alive counts too, not only what they show.
    """
    mixer, x = subject.build(**NARROW), subject.inputs(2, 60)
    mask = subject.mask(2, 60, seed=5, hidden=0.3)
    for real in (None, mask):
        state, kept = mixer.init_state(2), []
        for start, end in ((0, 1), (1, 20), (20, 21), (21, 60)):
            _, state = mixer.step(x[:, start:end], state, None if real is None else real[:, start:end])
            leaves = tree_leaves(state)
            kept.append(sum(leaf.untyped_storage().nbytes() for leaf in leaves))
            if real is None:
                # A mask adds which positions may be seen.
                held = sum(leaf.numel() for leaf in leaves)
                claimed = 2 * mixer.state_size(end)
                need(held == claimed, f"after {end} positions two rows hold {held} numbers, not {claimed} as claimed")
        bounded = kept[1] == kept[2] == kept[3]
        need(bounded == mixer.bounded_state, f"bytes after 20, 21 and 60 positions: {kept[1:]}")


def a_state_has_the_given_device_and_type(subject: Subject) -> None:
    """`init_state` creates the state on the given device and for the given type, without looking at weights."""
    mixer = subject.build()
    state = mixer.init_state(2, dtype=torch.float64, device="meta")
    floats = [leaf.dtype for leaf in tree_leaves(state) if leaf.is_floating_point()]
    need(all(leaf.is_meta for leaf in tree_leaves(state)), "it is on another device")
    need(set(floats) <= {torch.float64}, f"it has {floats}")
    need(all(len(leaf) == 2 for leaf in tree_leaves(state)), "the batch is not first in all its tensors")


def a_state_can_be_detached_saved_and_reordered(subject: Subject) -> None:
    """A state is tensors, batch first: detached, saved, loaded and reordered, it continues as before."""
    mixer, x = subject.build(), subject.inputs(2, 12)
    _, state = mixer.step(x[:, :8], mixer.init_state(2))
    file = io.BytesIO()
    torch.save(tree_leaves(state), file)
    file.seek(0)
    loaded = iter(torch.load(file, weights_only=True))
    swapped = tree_map(lambda _: next(loaded).detach()[[1, 0]], state)
    y, _ = mixer.step(x[[1, 0], 8:], swapped)
    close(y[[1, 0]], mixer(x)[:, 8:])


def a_step_does_not_change_the_given_state(subject: Subject) -> None:
    """`step` returns a new state: the old one can be continued many times."""
    mixer, x = subject.build(), subject.inputs(2, 12)
    _, state = mixer.step(x[:, :8], mixer.init_state(2))
    before = tree_map(Tensor.clone, state)
    first, _ = mixer.step(x[:, 8:], state)
    torch.testing.assert_close(state, before, rtol=0, atol=0)
    again, _ = mixer.step(x[:, 8:], state)
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def states_of_other_rows_are_refused(subject: Subject) -> None:
    """A state of more or fewer rows than the input is refused in a sentence."""
    mixer = subject.build()
    for rows in (1, 3):
        refused(UserError, "rows", functools.partial(mixer.step, subject.inputs(2, 1), mixer.init_state(rows)))


def states_need_a_causal_mixer(subject: Subject) -> None:
    """A mixer without states refuses to give or take one, and says why."""
    word = "causal=True" if subject.kind.capabilities.streaming else "state"
    refused(UserError, word, lambda: subject.build().init_state(1))
    refused(UserError, word, lambda: subject.build().step(subject.inputs(1, 1), ()))
