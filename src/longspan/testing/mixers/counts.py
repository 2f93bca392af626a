"""How often positions count in what others read: zero is padding, and gradients say what a removal changes."""

import torch

from longspan.errors import UserError
from longspan.testing.mixers.subject import Subject, close, gradient, need, refused, without_shape_checks


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
