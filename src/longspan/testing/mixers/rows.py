"""Checks of whole rows: agreement with the formula, padding, precision, batch mates, packed documents."""

import contextlib
import copy

import torch

from longspan.errors import UserError
from longspan.testing.mixers.subject import (
    NARROW,
    TOLERANCE,
    Subject,
    close,
    gradient,
    need,
    padded,
    random_cuts,
    refused,
    small_blocks,
    without_shape_checks,
)


def agrees_with_the_naive_form(subject: Subject) -> None:
    """The result equals that of the formula written out, in float64."""
    mixer = subject.build(torch.float64)
    for mask in subject.masks(2):
        b, t = mask.shape
        x = subject.inputs(b, t, torch.float64)
        close(mixer(x, mask), subject.expected(mixer, x, mask))
        close(mixer(x), subject.expected(mixer, x, None))


def extreme_logits_are_right(subject: Subject, scale: float) -> None:
    """Logits of any size are right, and gradients finite: no exponential is taken without a shift."""
    # A few repeated tokens: logits tie exactly, or are far apart. One late token exceeds them all.
    tokens = torch.arange(70, device=subject.device) * 7 % min(11, subject.dim)
    x = scale * torch.eye(subject.dim, device=subject.device)[tokens].unsqueeze(0)
    x[:, 60] *= 1e2
    mixer = subject.build()
    y = mixer(x.requires_grad_())
    need(gradient(y, x).isfinite().all(), "gradients are not finite")
    expected = subject.expected(mixer.double(), x.double(), None)
    size = expected[:, :60].abs().max()
    # Logits of 1e4 are rounded by up to 1e-3.
    torch.testing.assert_close(y[:, :60].double() / size, expected[:, :60] / size, rtol=0, atol=1e-3)
    close(y / expected.abs().max(), expected / expected.abs().max(), torch.bfloat16)


def gradients_agree_with_finite_differences(subject: Subject) -> None:
    """Gradients are right, and every parameter has one."""
    mixer = subject.build(torch.float64)
    for t in (3, subject.dim + 2):
        x = subject.inputs(2, t, torch.float64).requires_grad_()
        mask = subject.full(2, t)
        mask[0, -1] = False
        torch.autograd.gradcheck(lambda x, mask=mask: mixer(x, mask), (x,), atol=1e-6, fast_mode=t > 3)
        mixer.zero_grad()
        (mixer(x, mask) ** 2).sum().backward()
        without = [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        need(not without, f"no finite gradient reaches {', '.join(without)}")


def low_precision_stays_near_float64(subject: Subject, dtype: torch.dtype, t: int) -> None:
    """Results keep the type of x and are as accurate as it allows, over many positions too."""
    # Over many positions in small windows, where one position more or less shows.
    mixer, x = subject.build(dtype, **NARROW if t > 2048 else {}), subject.inputs(2, t, dtype)
    mask = subject.full(2, t)
    mask[0, :7] = mask[1, t - 10 :] = False
    y = mixer(x, mask)
    need(y.dtype == dtype, f"{dtype} in, but {y.dtype} out")
    close(y, copy.deepcopy(mixer).double()(x.double(), mask))


def many_positions_are_as_accurate_as_few(subject: Subject, dtype: torch.dtype) -> None:
    """After 65,536 positions sums still take in new ones."""
    mixer, x = subject.build(dtype, max_length=65536), subject.inputs(1, 65536, dtype)
    with torch.inference_mode():
        y, expected = mixer(x).double(), mixer.double()(x.double())
    # Each stretch is compared at its own size, as some outputs shrink as 1/t.
    size = expected.unflatten(1, (256, 256)).abs().amax((2, 3)).repeat_interleave(256, 1).unsqueeze(-1)
    # Half precision moves a query near the boundary of two buckets into the other one.
    tolerance = TOLERANCE[dtype] if dtype == torch.float32 else 0.1
    torch.testing.assert_close(y / size, expected / size, rtol=tolerance, atol=tolerance)


def padding_on_either_side_changes_nothing(subject: Subject, dtype: torch.dtype) -> None:
    """Padding on either side changes nothing: it is in no sum, normaliser or distance, and gives zeros."""
    mixer = subject.build(dtype)
    for left, t, right in ((0, 5, 3), (4, 1, 0), (7, 33, 12), (40, 20, 1)):
        x = subject.inputs(2, t, dtype)
        beside, mask = padded(x, left, right, 1e3)
        y = mixer(beside, mask)
        close(y[:, left : left + t], mixer(x))
        need((y[~mask] == 0).all(), "outputs at padding are not zero")


def what_padding_holds_is_never_seen(subject: Subject, dtype: torch.dtype) -> None:
    """Padding may hold NaN and infinity: it is replaced, not multiplied, and its gradients are zero."""
    mixer, clean = subject.build(dtype), subject.inputs(3, 30, dtype)
    mask = subject.mask(3, 30, seed=1, hidden=0.4)
    mask[1] = False
    for what in (float("nan"), float("inf")):
        x = clean.masked_fill(~mask.unsqueeze(-1), what).requires_grad_()
        mixer.zero_grad()
        y = mixer(x, mask)
        close(y, mixer(clean, mask))
        y.sum().backward()
        assert x.grad is not None
        need((x.grad[~mask] == 0).all(), "padding has a gradient")
        need(x.grad.isfinite().all(), f"{what} in padding reaches the gradient of x")
        bad = [name for name, p in mixer.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        need(not bad, f"{what} in padding reaches the gradient of {', '.join(bad)}")


def one_real_token_among_padding_is_alone(subject: Subject, dtype: torch.dtype, place: int) -> None:
    """A row with one real token gives what this token gives alone."""
    mixer = subject.build(dtype, **NARROW)
    x = torch.full((1, 300, subject.dim), 1e3, dtype=dtype, device=subject.device)
    x[:, place] = subject.inputs(1, 1, dtype)[:, 0]
    x.requires_grad_()
    mask = torch.arange(300, device=subject.device).unsqueeze(0) == place
    y = mixer(x, mask)
    close(y[:, place], mixer(x[:, place : place + 1])[:, 0])
    need((y[~mask] == 0).all(), "outputs at padding are not zero")
    found = gradient(y, x)
    need(found.isfinite().all(), "gradients are not finite")
    need((found[~mask] == 0).all(), "padding has a gradient")


def batch_mates_change_nothing(subject: Subject, dtype: torch.dtype) -> None:
    """A row gives the same whatever other rows are in the batch."""
    mixer, x = subject.build(dtype), subject.inputs(3, 40, dtype)
    mask = subject.mask(3, 40, seed=2, hidden=0.3)
    close(mixer(x, mask)[1:2], mixer(x[1:2], mask[1:2]))


def rows_of_padding_give_zeros(subject: Subject, dtype: torch.dtype) -> None:
    """A row without any real position gives zeros, and finite gradients."""
    mixer, x = subject.build(dtype), subject.inputs(2, 9, dtype).requires_grad_()
    mask = torch.zeros(2, 9, dtype=torch.bool, device=subject.device)
    mask[1, 4] = True
    y = mixer(x, mask)
    need((y[0] == 0).all(), "a row of padding gives something other than zeros")
    found = gradient(y, x)
    need(found.isfinite().all(), "gradients are not finite")
    need((found[0] == 0).all(), "a row of padding has a gradient")


def empty_inputs_give_empty_outputs(subject: Subject) -> None:
    """No positions, and no rows, give outputs of that shape; states stay as they are."""
    mixer = subject.build()
    for b, t in ((2, 0), (0, 5), (0, 0)):
        x, mask = subject.inputs(b, t), subject.full(b, t)
        need(mixer(x).shape == x.shape and mixer(x, mask).shape == x.shape, f"outputs of the wrong shape for {(b, t)}")
        if subject.kind.capabilities.packing:
            packed = mixer(x, mask, document_ids=subject.full(b, t).long())
            need(packed.shape == x.shape, f"packed outputs of the wrong shape for {(b, t)}")


def packed_documents_are_separate_calls(subject: Subject) -> None:
    """Documents packed into one row give what each gives by itself, or packing is refused."""
    mixer, numbers = subject.build(), subject.full(2, 3).long()
    if not subject.kind.capabilities.packing:
        refused(UserError, "document", lambda: mixer(subject.inputs(2, 3), document_ids=numbers))
        return
    for seed, t in enumerate((1, 6, 40, 70)):
        x, sizes = subject.inputs(2, t), random_cuts(t, seed)
        numbers = (7 - torch.arange(len(sizes))).repeat_interleave(torch.tensor(sizes))
        document_ids = numbers.to(subject.device).expand(2, -1)
        full = subject.full(2, t)
        for mask in (full, subject.mask(2, t, seed=seed, hidden=0.4)):
            documents = zip(x.split(sizes, 1), mask.split(sizes, 1), strict=True)
            separate = torch.cat([mixer(part, real) for part, real in documents], 1)
            close(mixer(x, mask, document_ids=document_ids), separate)
        close(mixer(x, document_ids=document_ids), mixer(x, full, document_ids=document_ids))
    torn = torch.tensor([[0, 1, 0]], device=subject.device)
    refused(ValueError, "contiguous", lambda: mixer(subject.inputs(1, 3), document_ids=torn))


def blocks_agree_with_the_whole(subject: Subject) -> None:
    """Computing large inputs block by block gives the same as all at once, gradients included."""
    t = 90
    for mask in (None, subject.mask(2, t, seed=3, hidden=0.3)):
        found = []
        for context in (small_blocks(), contextlib.nullcontext()):
            mixer, x = subject.build(torch.float64), subject.inputs(2, t, torch.float64).requires_grad_()
            with context:
                y = mixer(x, mask)
                (y**2).sum().backward()
            found.append([y, x.grad, *(p.grad for p in mixer.parameters())])
        torch.testing.assert_close(found[0], found[1])


def outputs_and_gradients_ignore_the_future(subject: Subject, dtype: torch.dtype) -> None:
    """A causal mixer's outputs, and their gradients, depend on nothing that comes later."""
    for t, now in ((2, 0), (30, 7), (70, 68), (300, 140)):
        mixer, x = subject.build(dtype), subject.inputs(1, t, dtype)
        changed = x.clone()
        changed[:, now + 1 :] += 5
        close(mixer(changed)[:, : now + 1], mixer(x)[:, : now + 1])
        x.requires_grad_()
        need((gradient(mixer(x)[:, now], x)[:, now + 1 :] == 0).all(), "a gradient comes from a later position")


def refuses_what_it_cannot_read(subject: Subject) -> None:
    """Wrong widths, masks of another shape or type, and unknown arguments are errors."""
    mixer, x = subject.build(), subject.inputs(2, 4)
    with without_shape_checks():
        refused(UserError, f"{subject.dim}", lambda: mixer(torch.zeros(2, 4, subject.dim + 1, device=subject.device)))
        refused(UserError, "mask", lambda: mixer(x, subject.full(2, 5)))
        refused(UserError, "mask", lambda: mixer(x, torch.ones(2, 4, device=subject.device)))
        refused(TypeError, "segment_numbers", lambda: mixer(x, segment_numbers=None))
