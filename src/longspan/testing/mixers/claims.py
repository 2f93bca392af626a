"""Checks of a mixer's claims about itself: its abilities and its cost."""

import functools
import inspect

import torch

from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.testing.counting import count_operations
from longspan.testing.mixers.subject import Subject, close, gradient, need, refused, without_shape_checks

# How far counted operations may be from claimed ones: blocks at the end of a row are not full, and a few thin products
# are left out. A larger difference means that a term of the formula is wrong.
FACTOR = 1.1


def operations_are_as_many_as_claimed(subject: Subject) -> None:
    """A forward pass takes the claimed `operations`, and grows linearly with the length if `linear`."""
    mixer, counts = subject.build(), []
    for length in (40, 1024, 2048):
        x = torch.zeros(1, length, subject.dim, device=subject.device)
        with torch.no_grad():
            counted, claimed = count_operations(functools.partial(mixer, x)), mixer.operations(length)
        counts.append(counted)
        need(
            counted <= FACTOR * claimed and claimed <= FACTOR * counted,
            f"{counted} operations counted at length {length}, but {claimed} claimed",
        )
    grows = counts[2] > 2.1 * counts[1]
    need(grows != mixer.linear, f"twice the length takes {counts[2] / max(1, counts[1]):.2f} times the operations")


def options_are_keywords_with_defaults(subject: Subject) -> None:
    """The constructor takes the width, and options by keyword, all with defaults; `causal` if there is such a form."""
    first, *others = inspect.signature(subject.kind).parameters.values()
    need(first.kind is first.POSITIONAL_OR_KEYWORD, f"the first argument is {first}, where the width should be")
    bad = [str(p) for p in others if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    need(not bad, f"not keyword-only with a default: {', '.join(bad)}")
    able = subject.kind.capabilities
    need(("causal" in subject.option_names) == able.causal, f"capabilities.causal is {able.causal}, unlike the options")
    need(able.causal or not able.streaming, "it streams without a causal form")


def attributes_say_how_it_was_built(subject: Subject) -> None:
    """`dim`, `causal`, `max_length` and `memory` say how a mixer was built, and a memory can be set."""
    mixer = subject.build()
    need(mixer.dim == subject.dim and mixer.causal == subject.causal, "dim and causal are not what was asked for")
    need(mixer.max_length is None or mixer.max_length >= 1, f"max_length is {mixer.max_length}")
    if mixer.memory is None:
        refused(UserError, "memory", lambda: mixer.set_memory(3))
        return
    mixer.set_memory(3)
    need(mixer.memory == 3, f"memory is {mixer.memory} after set_memory(3)")
    refused(UserError, "memory", lambda: mixer.set_memory(-1))


def rows_longer_than_max_length_are_refused(subject: Subject) -> None:
    """A row with more real positions than `max_length` is refused; padding does not count."""
    mixer: Mixer = subject.build(max_length=8)
    if mixer.max_length is None:
        return
    most = mixer.max_length
    x, mask = subject.inputs(1, most + 1), torch.arange(most + 1, device=subject.device).unsqueeze(0) > 0
    mixer(x, mask)
    refused(UserError, f"{most}", lambda: mixer(x))


def counts_of_zero_are_padding(subject: Subject, dtype: torch.dtype) -> None:
    """Counts of one change nothing, and counts of zero are a mask, also where padding holds NaN."""
    mixer = subject.build(dtype)
    for mask in subject.masks():
        b, t = mask.shape
        x = subject.inputs(b, t, dtype)
        close(mixer(x, mask, counts=torch.ones(b, t, device=x.device)), mixer(x, mask))
        kept = mask & subject.mask(b, t, seed=2, hidden=0.3)
        counts = kept.float().requires_grad_()
        hidden = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
        y = mixer(hidden, mask, counts=counts)
        close(y, mixer(x, kept))
        found = gradient(y, counts)
        need(found.isfinite().all(), "gradients of counts are not finite")
        need((found[~mask] == 0).all(), "the count of padding has a gradient")


def gradients_of_counts_agree_with_finite_differences(subject: Subject) -> None:
    """Outputs are differentiable in the counts: minus the gradient is what a removal changes, to first order."""
    mixer = subject.build(torch.float64)
    x, mask = subject.inputs(2, 9, torch.float64), subject.full(2, 9)
    mask[0, -1] = False
    counts = (0.5 + subject.inputs(2, 9, torch.float64)[..., 0].abs()).requires_grad_()
    torch.autograd.gradcheck(lambda counts: mixer(x, mask, counts=counts), (counts,), atol=1e-6, fast_mode=True)


def counts_that_do_not_fit_are_refused(subject: Subject) -> None:
    """Counts of another shape or type, and those beside packed documents, are refused."""
    mixer, x = subject.build(), subject.inputs(2, 5)
    counts = torch.ones(2, 5, device=x.device)
    ids = torch.zeros(2, 5, dtype=torch.long, device=x.device)
    with without_shape_checks():
        refused(UserError, "counts", lambda: mixer(x, counts=counts[:, :4]))
        refused(UserError, "counts", lambda: mixer(x, counts=counts.long()))
        refused(UserError, "counts", lambda: mixer(x, counts=counts, document_ids=ids))
