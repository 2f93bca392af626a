"""Products that read one tensor, and their gradients: one product."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rounding import assert_within, rounding
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from longspan.ops import reads as joint
from longspan.ops.competition import position_softmax


def mixed(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Read x three times, each read depending on the one before."""
    reads = joint.joint_reads(x, 3, 3, 3)
    pooled = joint.pool(reads, position_softmax(joint.score(reads, rows))) @ matrix
    return joint.score(reads, pooled).relu().mT @ pooled


def mixed_plainly(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    pooled = (x @ rows.T).softmax(1).mT @ x @ matrix
    return (x @ pooled.mT).relu() @ pooled


def inputs(t: int = 7) -> tuple[Tensor, ...]:
    shapes = ((2, t, 4), (3, 4), (4, 4))
    x, rows, matrix = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return x, rows, matrix


def test_thin_products_and_their_gradients_are_those_of_plain_autograd() -> None:
    arguments = inputs()
    y, expected = mixed(*arguments), mixed_plainly(*arguments)
    torch.testing.assert_close(y, expected)
    gradient = torch.randn_like(y)
    got = torch.autograd.grad(y, arguments, gradient)
    torch.testing.assert_close(got, torch.autograd.grad(expected, arguments, gradient))


def test_second_derivatives() -> None:
    arguments = inputs(3)
    assert torch.autograd.gradcheck(mixed, arguments)
    assert torch.autograd.gradgradcheck(mixed, arguments)


@pytest.mark.parametrize("wanted", [0, 1])
def test_parts_may_go_without_gradient(wanted: int) -> None:
    arguments = [tensor.detach().requires_grad_(i == wanted) for i, tensor in enumerate(inputs())]
    y, expected = mixed(*arguments), mixed_plainly(*arguments)
    (got,) = torch.autograd.grad(y.sum(), arguments[wanted])
    torch.testing.assert_close(got, torch.autograd.grad(expected.sum(), arguments[wanted])[0])


def test_backward_passes_leave_nothing_behind() -> None:
    """Known failure elsewhere: factors kept outside the graph are counted twice after a pass that x had no part in."""
    arguments = inputs()
    y = mixed(*arguments).sum()
    torch.autograd.grad(y, arguments[1], retain_graph=True)
    for _ in range(2):
        got = torch.autograd.grad(y, arguments, retain_graph=True)
        torch.testing.assert_close(got, torch.autograd.grad(mixed_plainly(*arguments).sum(), arguments))


def test_reads_that_nobody_uses_owe_nothing() -> None:
    x, rows, _ = inputs()
    reads = joint.joint_reads(x, 3, 3)
    scores, _unused = joint.score(reads, rows), joint.score(reads, 2 * rows)
    (got,) = torch.autograd.grad(scores.sum(), x)
    torch.testing.assert_close(got, rows.sum(0).expand_as(x))


class Wide(TorchDispatchMode):
    """Notes the operations that write a tensor of the shape of x, and counts the products that read x."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.shape, self.storage = x.shape, x.untyped_storage().data_ptr()
        self.written: list[str] = []
        self.products_of_x = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        storages = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in storages:
            if out.shape[-2:] == self.shape[-2:]:
                self.written.append(func.overloadpacket.__name__)
            self.products_of_x += func is torch.ops.aten.bmm.default and self.storage in storages
        return out


def wide_operations(function: Callable[..., Tensor], x: Tensor, *rest: Tensor) -> tuple[list[str], int]:
    """Return what the backward pass writes in the shape of x, and how many products of x it takes."""
    y = function(x, *rest)
    gradient = torch.ones_like(y)
    with Wide(x) as wide:
        torch.autograd.grad(y, (x, *rest), gradient)
    return wide.written, wide.products_of_x


def transformed(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Read x by a product as wide as x, which depends on another read."""
    reads = joint.joint_reads(x, 3, 3, 4)
    pooled = joint.pool(reads, position_softmax(joint.score(reads, rows)))
    return joint.transform(reads, matrix * pooled[:, :1], pooled[:, 1:2])


def transformed_plainly(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    pooled = (x @ rows.T).softmax(1).mT @ x
    return x @ (matrix * pooled[:, :1]).mT + pooled[:, 1:2]


def test_a_transform_adds_to_the_same_gradient() -> None:
    arguments = inputs(5)
    y, expected = transformed(*arguments), transformed_plainly(*arguments)
    torch.testing.assert_close(y, expected)
    gradient = torch.randn_like(y)
    got = torch.autograd.grad(y, arguments, gradient, retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(expected, arguments, gradient))
    assert torch.autograd.gradcheck(transformed, arguments)
    assert torch.autograd.gradgradcheck(transformed, arguments)
    # Several gradients at once.
    several = torch.eye(y.numel(), dtype=y.dtype).view(-1, *y.shape)[:7]
    batched = torch.autograd.grad(y, arguments, several, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(y, arguments, one, retain_graph=True) for one in several]
    for found, each in zip(batched, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(each))


def test_a_transform_runs_as_autocast_says() -> None:
    """Other reads stay in the type of x."""
    x, rows, matrix = (tensor.detach().float().requires_grad_() for tensor in inputs(5))
    with torch.autocast("cpu", torch.bfloat16):
        reads = joint.joint_reads(x, 3, 4)
        scores, y = joint.score(reads, rows), joint.transform(reads, matrix)
        expected = x @ matrix.mT
    assert scores.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)
    gradients = torch.autograd.grad(y.float().sum() + scores.sum(), (x, rows, matrix))
    # The gradient of the rows comes from scores alone; x has both, one of them of a matrix and a sum in bfloat16.
    torch.testing.assert_close(gradients[1], x.sum((0, 1)).expand_as(rows))
    allowed = rounding(2, matrix.double().abs().sum(0), torch.bfloat16)
    allowed += rounding(
        len(rows) + len(matrix), (rows.double().abs().sum(0) + matrix.double().abs().sum(0)), torch.float32
    )
    assert_within(gradients[0], (rows.double().sum(0) + matrix.double().sum(0)).expand_as(x), allowed)


def wide_inputs() -> tuple[Tensor, ...]:
    shapes = ((1, 512, 64), (3, 64), (64, 64))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def test_the_gradient_of_x_is_one_product() -> None:
    """What it saves: plain autograd writes a product for each read, and their sums."""
    arguments = wide_inputs()
    assert wide_operations(mixed, *arguments) == (["bmm"], 3)
    plain, _ = wide_operations(mixed_plainly, *arguments)
    assert len(plain) == 5, plain


def test_thin_factors_are_added_to_the_product_of_a_transform() -> None:
    """In place: the products of scores and sums write nothing of the size of x, and copy no factor as wide as it."""
    shapes = ((1, 512, 64), (3, 64), (64, 64))
    x, rows, matrix = (torch.randn(shape, requires_grad=True) for shape in shapes)

    def wide(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
        reads = joint.joint_reads(x, 3, 3, 64)
        pooled = joint.pool(reads, position_softmax(joint.score(reads, rows)))
        return joint.transform(reads, matrix * pooled[:, :1])

    assert wide_operations(wide, x, rows, matrix)[0] == ["bmm"]


def test_checkpoints_compute_reads_once_more() -> None:
    """Three reads again, and their gradients."""

    def checkpointed(*arguments: Tensor) -> Tensor:
        found: Tensor = checkpoint(mixed, *arguments, use_reentrant=False)
        return found

    arguments = wide_inputs()
    assert wide_operations(checkpointed, *arguments) == (["bmm"], 6)
    got, expected = (torch.autograd.grad(mix(*arguments).sum(), arguments) for mix in (checkpointed, mixed))
    torch.testing.assert_close(got, expected)


def test_reads_not_announced_are_refused() -> None:
    """Their share of the gradient would have no place, or a place of another shape."""
    reads = joint.joint_reads(torch.randn(2, 5, 4), 3)
    with pytest.raises(ValueError, match="width 3, as announced, got 1"):
        joint.score(reads, torch.randn(1, 4))
    reads = joint.joint_reads(torch.randn(2, 5, 4), 3)
    joint.score(reads, torch.randn(3, 4))
    with pytest.raises(ValueError, match="got 3"):
        joint.score(reads, torch.randn(3, 4))
