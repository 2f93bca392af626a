"""Checks of mixers that attend to another sequence, a context, whole or from a state that has read it."""

import copy
import functools
import io

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from longspan.errors import UserError
from longspan.mixers.base import ContextState
from longspan.testing.counting import count_operations
from longspan.testing.mixers.claims import FACTOR
from longspan.testing.mixers.subject import (
    Subject,
    close,
    gradient,
    in_steps,
    need,
    padded,
    random_cuts,
    refused,
    without_shape_checks,
)


def contexts_are_refused_where_unsupported(subject: Subject) -> None:
    """A context is refused by mixers without cross attention, with packed documents, and where it does not fit x."""
    mixer, x = subject.build(), subject.inputs(2, 4)
    starts = [lambda: mixer(x, context=x)]
    if subject.streams:
        starts.append(lambda: mixer.init_state(2, context=x))
        refused(UserError, "context", lambda: mixer.init_state(2, context_mask=subject.full(2, 4)))
    if not mixer.takes_context:
        for start in starts:
            refused(UserError, "context", start)
        return
    refused(UserError, "context", lambda: mixer(x, document_ids=subject.full(2, 4).long(), context=x))
    refused(UserError, "context", lambda: mixer(x, context_mask=subject.full(2, 4)))
    if len(starts) == 1:
        word = "causal=True" if subject.kind.capabilities.streaming else "state"
        refused(UserError, word, lambda: mixer.init_state(2, context=x))
        return
    state = mixer.init_state(2, context=x)
    refused(UserError, "context", lambda: mixer(x, context=x, state=state))
    refused(UserError, "rows", lambda: mixer.step(x[:1], state))
    with without_shape_checks():
        refused(UserError, "context", lambda: mixer.init_state(3, context=x))
        refused(UserError, "context_mask", lambda: mixer.init_state(2, context=x, context_mask=subject.full(2, 5)))


def cross_attention_agrees_with_the_naive_form(subject: Subject) -> None:
    """Cross attention equals the formula written out, in float64."""
    mixer = subject.build(torch.float64)
    for seed, mask in enumerate(subject.masks()):
        b, n = mask.shape
        m = 1 + 17 * seed
        x, context = subject.inputs(b, n, torch.float64), subject.inputs(b, m, torch.float64)
        context_mask = subject.mask(b, m, seed=seed, hidden=0.5)
        expected = subject.expected(mixer, x, mask, context, context_mask)
        close(mixer(x, mask, context=context, context_mask=context_mask), expected)
        close(mixer(x, context=context), subject.expected(mixer, x, None, context, None))


def weights_of_a_context_give_the_outputs(subject: Subject) -> None:
    """Outputs of cross attention are what `pool_context` makes of `context_weights`.

    No weight is negative or at padding. Mixers that declare no weights refuse.
    """
    mixer = subject.build(torch.float64)
    for seed, mask in enumerate(subject.masks()):
        b, n = mask.shape
        m = 1 + 17 * seed
        x, context = subject.inputs(b, n, torch.float64), subject.inputs(b, m, torch.float64)
        real = subject.mask(b, m, seed=seed, hidden=0.5)
        padded = context.masked_fill(~real.unsqueeze(-1), float("nan"))
        if not subject.kind.capabilities.weights:
            refused(UserError, "weight", functools.partial(mixer.context_weights, x, context=context))
            return
        weights = mixer.context_weights(x, mask, context=padded, context_mask=real)
        need(weights.shape == (b, weights.shape[1], n, m), f"weights of {n} by {m} are {tuple(weights.shape)}")
        there = mask[:, None, :, None] & real[:, None, None, :]
        need((weights >= 0).all() and (weights.masked_fill(there, 0) == 0).all(), "padding weighs something")
        expected = mixer(x, mask, context=context, context_mask=real)
        served = mask & real.any(1, keepdim=True)
        close(mixer.pool_context(weights, context)[served], expected[served])
        whole = mixer(x, context=context)
        close(mixer.pool_context(mixer.context_weights(x, context=context), context), whole)


def gradients_reach_the_context(subject: Subject) -> None:
    """Gradients of cross attention are right, for x and for the context, through states too."""
    mixer = subject.build(torch.float64)
    x, context = (subject.inputs(2, t, torch.float64).requires_grad_() for t in (4, 6))
    mask, context_mask = subject.full(2, 4), subject.full(2, 6)
    mask[0, -1] = context_mask[1, 0] = False

    def whole(x: Tensor, context: Tensor) -> Tensor:
        y: Tensor = mixer(x, mask, context=context, context_mask=context_mask)
        return y

    torch.autograd.gradcheck(whole, (x, context), atol=1e-6)
    if subject.causal:
        expected = torch.autograd.grad((whole(x, context) ** 2).sum(), (x, context))
        y = in_steps(mixer, x, [1, 2, 1], mixer.init_state(2, context=context, context_mask=context_mask), mask)
        torch.testing.assert_close(torch.autograd.grad((y**2).sum(), (x, context)), expected)


def what_the_padding_of_a_context_holds_is_never_seen(subject: Subject, dtype: torch.dtype) -> None:
    """Padding of a context changes nothing, whatever it holds; rows whose context is empty give zeros."""
    mixer, x, context = subject.build(dtype), subject.inputs(2, 9, dtype), subject.inputs(2, 30, dtype)
    for what in (1e3, float("nan")):
        beside, real = padded(context, 5, 3, what)
        close(mixer(x, context=beside, context_mask=real), mixer(x, context=context))
        some = real.clone()
        some[0] = False
        given, beside = x.clone().requires_grad_(), beside.requires_grad_()
        y = mixer(given, context=beside, context_mask=some)
        need((y[0] == 0).all(), "a row with an empty context gives something other than zeros")
        y.sum().backward()
        for found in (given.grad, beside.grad):
            need(found is not None and bool(found.isfinite().all()), "gradients are not finite")
        assert beside.grad is not None
        need((beside.grad[~some] == 0).all(), "padding of the context has a gradient")
    y = mixer(x, context=context[:, :0])
    need(y.shape == x.shape and bool((y == 0).all()), "a context of no positions gives something other than zeros")


def padding_beside_a_context_changes_nothing(subject: Subject, dtype: torch.dtype) -> None:
    """With a context, padding of x on either side and batch mates change nothing, whatever they hold."""
    mixer = subject.build(dtype)
    for left, n, right in ((0, 5, 3), (4, 1, 0), (7, 33, 12)):
        x, context = subject.inputs(2, n, dtype), subject.inputs(2, 1 + right, dtype)
        beside, mask = padded(x, left, right, float("nan"))
        y = mixer(beside, mask, context=context)
        close(y[:, left : left + n], mixer(x, context=context))
        need((y[~mask] == 0).all(), "outputs at padding are not zero")
        close(mixer(x[1:], context=context[1:]), mixer(x, context=context)[1:])


def cross_attention_in_low_precision_is_near_float64(subject: Subject, dtype: torch.dtype) -> None:
    """Cross attention keeps the type of x, and is as accurate as it allows; under autocast, to half precision."""
    mixer, x, context = subject.build(dtype), subject.inputs(2, 300, dtype), subject.inputs(2, 700, dtype)
    mask, real = subject.full(2, 300), subject.full(2, 700)
    mask[0, :7] = real[1, 600:] = False
    y = mixer(x, mask, context=context, context_mask=real)
    need(y.dtype == dtype, f"{dtype} in, but {y.dtype} out")
    exact = subject.build(torch.float64)
    exact.load_state_dict(mixer.state_dict())
    close(y, exact(x.double(), mask, context=context.double(), context_mask=real))
    if dtype == torch.float32:
        with torch.autocast(subject.device.type, torch.bfloat16):
            half = mixer(x, mask, context=context, context_mask=real)
            half.float().sum().backward()
        close(half, y, torch.bfloat16)


def cross_attention_costs_as_much_as_claimed(subject: Subject) -> None:
    """Cross attention takes the claimed `context_operations`, and of a step as many as of any other; they grow with the
    length of the context unless `bounded_context`."""
    mixer, steps = subject.build(), []
    for n, m in ((1, 40), (40, 40), (7, 1024), (1024, 300)):
        x, context = (torch.zeros(1, t, subject.dim, device=subject.device) for t in (n, m))
        with torch.no_grad():
            counted = count_operations(functools.partial(mixer, x, context=context))
        claimed = mixer.context_operations(n, m)
        need(
            counted <= FACTOR * claimed and claimed <= FACTOR * counted,
            f"{counted} operations counted for {n} positions with a context of {m}, but {claimed} claimed",
        )
    if not subject.causal:
        return
    for m in (64, 4096):
        with torch.no_grad():
            state = mixer.init_state(1, context=torch.zeros(1, m, subject.dim, device=subject.device))
            for _ in range(3):
                steps.append(count_operations(functools.partial(mixer.step, x[:, :1], state)))
                _, state = mixer.step(x[:, :5], state)
    need(len({*steps[:3]}) == len({*steps[3:]}) == 1, f"steps from one context take {steps} operations")
    need((steps[0] == steps[3]) == mixer.bounded_context, f"with 64 and 4,096 positions, steps take {steps} operations")


def a_context_is_read_once(subject: Subject, dtype: torch.dtype) -> None:
    """With a context, whole, in any cuts and token by token the outputs agree, and steps leave what was read as it
    was."""
    mixer = subject.build(dtype)
    for seed, mask in enumerate(subject.masks()):
        b, n = mask.shape
        x = subject.inputs(b, n, dtype).masked_fill(~mask.unsqueeze(-1), float("nan"))
        m = (1, 40, 7, 0, 90)[seed]
        context, real = subject.inputs(b, m, dtype), subject.mask(b, m, seed=seed, hidden=0.5)
        expected = mixer(x, mask, context=context, context_mask=real)
        for sizes in (random_cuts(n, seed), [1] * min(n, 20)):
            state = mixer.init_state(b, context=context, context_mask=real)
            close(in_steps(mixer, x, sizes, state, mask), expected[:, : sum(sizes)])


def the_future_of_x_is_not_seen_with_a_context(subject: Subject, dtype: torch.dtype) -> None:
    """With a context, outputs and their gradients depend on nothing of x that comes later."""
    for n, now in ((2, 0), (30, 7), (70, 68)):
        mixer, x, context = subject.build(dtype), subject.inputs(1, n, dtype), subject.inputs(1, 9, dtype)
        changed = x.clone()
        changed[:, now + 1 :] += 5
        close(mixer(changed, context=context)[:, : now + 1], mixer(x, context=context)[:, : now + 1])
        x.requires_grad_()
        y = mixer(x, context=context)[:, now]
        need((gradient(y, x)[:, now + 1 :] == 0).all(), "a gradient comes from a later position")


def a_state_with_a_context_is_a_state(subject: Subject) -> None:
    """A state with a context is tensors, batch first, which steps do not change or let grow: detached, saved, loaded
    and reordered, it continues as before."""
    mixer, x, context = subject.build(), subject.inputs(2, 12), subject.inputs(2, 7)
    real = subject.mask(2, 7, seed=1, hidden=0.3)
    whole = mixer(x, context=context, context_mask=real)
    start = mixer.init_state(2, context=context, context_mask=real)
    need(isinstance(start, ContextState), f"it is a {type(start).__name__}, not a ContextState")
    _, state = mixer.step(x[:, :8], start)
    held, before = ([leaf.shape for leaf in tree_leaves(each)] for each in (state, start))
    need(held == before, f"its tensors were {before}, and after a step {held}")
    need(all(leaf.shape[0] == 2 for leaf in tree_leaves(state)), "the batch is not first in all its tensors")
    torch.testing.assert_close(state.context, start.context, rtol=0, atol=0)
    saved = tree_map(Tensor.clone, state)
    again, _ = mixer.step(x[:, 8:], state)
    close(again, whole[:, 8:])
    torch.testing.assert_close(state, saved, rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(tree_leaves(state), file)
    file.seek(0)
    loaded = iter(torch.load(file, weights_only=True))
    swapped = tree_map(lambda _: next(loaded).detach()[[1, 0]], state)
    y, _ = mixer.step(x[[1, 0], 8:], swapped)
    close(y[[1, 0]], whole[:, 8:])
    same, empty = mixer.step(x[:, :0], state)
    need(same.shape == (2, 0, subject.dim), f"a step of no positions gives an output of {tuple(same.shape)}")
    torch.testing.assert_close(empty, state, rtol=0, atol=0)


def reset_rows_keep_their_context(subject: Subject) -> None:
    """`reset` lets some rows start over with the context that they have, and the others continue."""
    mixer, x, context = subject.build(), subject.inputs(3, 40), subject.inputs(3, 9)
    mask, rows = subject.mask(3, 40, seed=4, hidden=0.3), torch.tensor([True, False, True], device=subject.device)
    state = mixer.init_state(3, context=context)
    _, state = mixer.step(x[:, :25], state, mask[:, :25])
    y, _ = mixer.step(x[:, 25:], mixer.reset(state, rows), mask[:, 25:])
    close(y[rows], mixer(x[rows, 25:], mask[rows, 25:], context=context[rows]))
    close(y[~rows], mixer(x[~rows], mask[~rows], context=context[~rows])[:, 25:])


def programs_read_a_context(subject: Subject) -> None:
    """torch.compile takes cross attention in one piece, steps included; a deep copy reads and steps by itself, and so
    does a mixer whose weights are offloaded."""
    from accelerate import cpu_offload

    mixer, x, context = subject.build(), subject.inputs(2, 12), subject.inputs(2, 7)
    real = subject.mask(2, 7, seed=1, hidden=0.3)
    torch._dynamo.reset()
    with without_shape_checks(), torch.no_grad():
        whole = mixer(x, context=context, context_mask=real)
        compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
        close(compiled(x, context=context, context_mask=real), whole)
        copied = copy.deepcopy(mixer)
        offloaded = cpu_offload(copy.deepcopy(mixer), execution_device=subject.device, offload_buffers=True)
        for parameter in mixer.parameters():
            parameter.zero_()
        for program in (copied, offloaded):
            close(program(x, context=context, context_mask=real), whole)
            if subject.streams:
                state = program.init_state(2, context=context, context_mask=real)
                _, state = program.step(x[:, :8], state)
                close(program.step(x[:, 8:], state)[0], whole[:, 8:])
                if program is copied:
                    step = torch.compile(program.step, backend="aot_eager", fullgraph=True)
                    close(step(x[:, 8:], state)[0], whole[:, 8:])
