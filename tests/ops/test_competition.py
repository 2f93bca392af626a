"""Thin products, their gradients, and the algebra of heads on pooled rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from longspan.ops import competition


def mixed(x: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Read x three times, each read depending on the one before."""
    reads = competition.thin_reads(x, 3, 3, 3)
    pooled = competition.pool(reads, competition.position_softmax(competition.score(reads, rows))) @ matrix
    return competition.score(reads, pooled).relu().mT @ pooled


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
    reads = competition.thin_reads(x, 3, 3)
    scores, _unused = competition.score(reads, rows), competition.score(reads, 2 * rows)
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


def wide_inputs() -> tuple[Tensor, ...]:
    shapes = ((1, 512, 64), (3, 64), (64, 64))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def test_the_gradient_of_x_is_one_product() -> None:
    """What it saves: plain autograd writes a product for each read, and their sums."""
    arguments = wide_inputs()
    assert wide_operations(mixed, *arguments) == (["bmm"], 3)
    plain, _ = wide_operations(mixed_plainly, *arguments)
    assert len(plain) == 5, plain


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
    reads = competition.thin_reads(torch.randn(2, 5, 4), 3)
    with pytest.raises(ValueError, match="width 3, as announced, got 1"):
        competition.score(reads, torch.randn(1, 4))
    reads = competition.thin_reads(torch.randn(2, 5, 4), 3)
    competition.score(reads, torch.randn(3, 4))
    with pytest.raises(ValueError, match="got 3"):
        competition.score(reads, torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_softmax_leaves_padding_out_of_the_normaliser(dtype: torch.dtype) -> None:
    """Known failure elsewhere: padding zeroed in the values but left in the normaliser; empty rows uniform or NaN."""
    logits = torch.tensor([[[0.0, 1e4, 0.0]], [[1.0, 2.0, 3.0]]], dtype=dtype)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    weights = competition.position_softmax(logits, mask)
    assert weights.tolist() == [[[0.5, 0.0, 0.5]], [[0.0, 0.0, 0.0]]]
    assert weights.dtype == torch.float32


def test_projections_of_pooled_rows_are_pooled_projections() -> None:
    x, projection = torch.randn(2, 5, 6).double(), nn.Linear(6, 6).double()
    weights = torch.randn(2, 3, 5).double().softmax(2)
    pooled = competition.project_heads(weights @ x, projection.weight, projection.bias)
    expected = torch.einsum("bht,bthe->bhe", weights, projection(x).unflatten(2, (3, 2)))
    torch.testing.assert_close(pooled, expected)
    scores = x @ competition.against_keys(pooled, projection.weight).mT
    keys = (x @ projection.weight.T).unflatten(2, (3, 2))
    torch.testing.assert_close(scores, torch.einsum("bhe,bthe->bth", pooled, keys))


def test_handing_out_is_the_projected_concatenation_of_heads() -> None:
    weights, answers, matrix = torch.randn(2, 3, 5), torch.randn(2, 3, 2), torch.randn(6, 6)
    joined = (weights.unsqueeze(-1) * answers.unsqueeze(2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(competition.hand_out(weights, answers, None), joined)
    torch.testing.assert_close(competition.hand_out(weights, answers, matrix), joined @ matrix.T)
