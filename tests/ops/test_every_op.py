"""What holds for every op: half precision with masks, no positions at all, and derivatives of every kind.

A derivative is right or refused, never silently something else. `docs/derivatives.md` says which.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from longspan.ops import (
    attention,
    competition,
    delta,
    depthwise,
    edges,
    gated_linear,
    linear,
    linear_cross_entropy,
    lsh,
    normalised,
    packing,
    pooling,
    relative,
    scan,
    window,
)
from longspan.ops.linear_sums import plain
from longspan.ops.reads import joint_reads, pool, score

# PyTorch's own, when forward-mode differentiation is first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
T = 9


@dataclass(frozen=True)
class Op:
    """An op of `inputs`, which all need gradients; masks and the like are taken from their shapes.

    The inputs have shapes (b, t, ...) or (b, h, t, ...); dimension `positions` of each counts positions.
    """

    function: Callable[..., Any]
    inputs: Callable[[int], list[Tensor]]


def real(b: int, t: int) -> Tensor:
    """A mask with padding on either side, and in between."""
    return ((torch.arange(t) % 4 != 2) & (torch.arange(t) > 0)).expand(b, t)


def heads_last(t: int) -> list[Tensor]:
    return [torch.randn(2, t, 2, 3), torch.randn(2, t, 2), torch.randn(2, 2, 3)]


def queries_keys_values(t: int) -> list[Tensor]:
    return [torch.randn(2, 2, t, 4) for _ in range(3)]


def thin(x: Tensor, rows: Tensor) -> Tensor:
    reads = joint_reads(x, 3, 3, 3)
    pooled = pool(reads, competition.position_softmax(score(reads, rows), real(2, x.shape[1])))
    return competition.hand_out(score(reads, pooled), pooled, None)


def relative_inputs(t: int) -> list[Tensor]:
    largest, smallest = relative.distance_range(t, t, True, None)
    return [*(torch.randn(2, 2, t, 4) for _ in range(4)), torch.randn(2, largest - smallest + 1, 4)]


def relative_op(content: Tensor, position: Tensor, key: Tensor, value: Tensor, distance_key: Tensor) -> Tensor:
    return relative.relative_attention(content, position, key, value, distance_key, real(2, key.shape[2]), causal=True)


def hashed(query_key: Tensor, value: Tensor) -> Tensor:
    t = value.shape[2]
    buckets = (torch.arange(t) * 5 % 4).expand(2, 2, 2, t)
    return lsh.lsh_attention(query_key, value, buckets, 3, real(2, t))


def chosen_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (x.unflatten(2, (-1, 1)) for x in (query, key, value))
    t = query.shape[2]
    chosen = torch.stack((torch.arange(t), (torch.arange(t) * 2) % max(t, 1)), 1).expand(2, 2, t, 2)
    return window.block_attention(query, key, value, chosen, real(2, t).unsqueeze(2))


def depthwise_inputs(t: int) -> list[Tensor]:
    return [torch.randn(2, t + 2, 4), torch.randn(3, 4)]


def neighbours(x: Tensor, weight: Tensor) -> Tensor:
    n = x.shape[1] - 2
    return depthwise.depthwise_convolution(x, weight, torch.arange(3 * n).view(n, 3).expand(2, n, 3) % 5 != 1)


def predicted(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows, (b, t) = hidden.flatten(0, 1), hidden.shape[:2]
    targets = torch.arange(b * t) % 7
    targets = targets.where(real(b, t).flatten(), -100)
    return linear_cross_entropy.linear_cross_entropy(rows, weight, bias, targets, -100).view(b, t)


def on_edges(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    _, source, target = edges.chain(1, len(query)) if len(query) else torch.empty(3, 0, dtype=torch.long)
    return edges.edge_attention(query, key, value, source, target, source % 3 != 1)


def linear_stream(query: Tensor, key: Tensor, value: Tensor, slope: Tensor | None = None) -> Any:
    state, mask = linear.empty_sums(2, 2, 4, query.dtype), real(2, query.shape[2])
    rates = None if slope is None else (slope**2).masked_fill(~mask.unsqueeze(1), 0)
    return linear.causal_linear_attention(query, key, value, mask, state, rates)


def gated_inputs(t: int, per_channel: bool) -> list[Tensor]:
    return [*queries_keys_values(t), torch.rand(2, 2, t, *[4] * per_channel), torch.randn(2, 2, 4, 4)]


def delta_rule(query: Tensor, key: Tensor, value: Tensor, rates: Tensor, state: Tensor) -> Any:
    return delta.gated_delta_rule(query, key / 4, value, rates.sigmoid(), rates**2, state)


def shared_window(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask = real(2, query.shape[2])
    everywhere = window.Shared(key[:, :, :1], value[:, :, :1], mask[:, :1])
    return window.window_attention(query, key, value, 2, mask, shared=everywhere)


OPS = {
    "lerp_scan": Op(lambda v, g, o: scan.lerp_scan(v, g.sigmoid(), o), heads_last),
    "lerp_scan per channel": Op(
        lambda v, g: scan.lerp_scan(v, g.sigmoid()), lambda t: [torch.randn(2, t, 2, 3) for _ in range(2)]
    ),
    "softmax_gates": Op(
        lambda z: scan.softmax_gates(pooling.masked_logits(z, real(2, z.shape[1]))), lambda t: heads_last(t)[1:2]
    ),
    "prefix_softmax_mean": Op(
        lambda v, z: pooling.prefix_softmax_mean(v, z, real(2, z.shape[1])), lambda t: heads_last(t)[:2]
    ),
    "prefix_softmax_mean, forgetting": Op(
        lambda v, z, f: pooling.prefix_softmax_mean(v, z, rates=(f**2).masked_fill(~real(2, z.shape[1])[..., None], 0)),
        lambda t: [*heads_last(t)[:2], torch.randn(2, t, 2)],
    ),
    "window_softmax_mean": Op(
        lambda v, z, f: pooling.window_softmax_mean(
            v, z, real(2, z.shape[1]), (f**2).masked_fill(~real(2, z.shape[1])[..., None], 0)
        ),
        lambda t: [*heads_last(t)[:2], torch.randn(2, t, 2)],
    ),
    "softmax_pool": Op(
        lambda v, z: pooling.softmax_pool_state(v, z, real(2, z.shape[1])),
        lambda t: [torch.randn(2, t, 5), torch.randn(2, t, 3)],
    ),
    "competition": Op(thin, lambda t: [torch.randn(2, t, 4), torch.randn(3, 4)]),
    "linear": Op(lambda q, k, v: linear.linear_attention(q, k, v, real(2, k.shape[2])), queries_keys_values),
    "linear, causal": Op(linear_stream, queries_keys_values),
    "linear, forgetting": Op(linear_stream, lambda t: [*queries_keys_values(t), torch.randn(2, 2, t)]),
    "gated_linear": Op(gated_linear.gated_linear_attention, lambda t: gated_inputs(t, False)),
    "gated_linear per channel": Op(gated_linear.gated_linear_attention, lambda t: gated_inputs(t, True)),
    "delta": Op(delta_rule, lambda t: gated_inputs(t, False)),
    "normalised": Op(lambda x: normalised.normalised(x, 2.0, 1e-3), lambda t: [torch.randn(2, t, 4)]),
    "relative": Op(relative_op, relative_inputs),
    "window": Op(
        lambda q, k, v: window.window_attention(q, k, v, 2, real(2, k.shape[2]), causal=True), queries_keys_values
    ),
    "window, shared": Op(shared_window, queries_keys_values),
    "blocks": Op(chosen_blocks, queries_keys_values),
    "depthwise": Op(neighbours, depthwise_inputs),
    "linear_cross_entropy": Op(predicted, lambda t: [torch.randn(2, t, 4), torch.randn(7, 4), torch.randn(7)]),
    "lsh": Op(hashed, lambda t: queries_keys_values(t)[:2]),
    "edges": Op(on_edges, lambda t: [torch.randn(t, 2, 3) for _ in range(3)]),
    "attention": Op(
        lambda q, k, v: attention.attention(q, k, v, real(2, k.shape[2]), causal=True), queries_keys_values
    ),
}
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def outputs(result: Any) -> list[Tensor]:
    """Return the tensors of a result, states included, in one list."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result for tensor in outputs(part)]


def total(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([tensor.sum() for tensor in tensors]).sum()


@pytest.mark.slow
@every_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_masks(op: Op, dtype: torch.dtype) -> None:
    """Outputs and gradients are those of float64 to a few roundings: -1e30 for what is hidden overflows float16."""
    inputs = [x.to(dtype) for x in op.inputs(T)]
    results = []
    for kind in (torch.float64, dtype):
        leaves = [x.to(kind).requires_grad_() for x in inputs]
        found = outputs(op.function(*leaves))
        grads = torch.autograd.grad(total(x.masked_fill(x < -1e20, 0).double() for x in found), leaves)
        results.append([*(x.detach() for x in found), *grads])
        assert found[0].dtype in (kind, torch.float32)
    for exact, rounded in zip(*results, strict=True):
        # Up to sixteen roundings on the way, each half a unit of the largest number.
        tolerance = 8 * torch.finfo(dtype).eps * max(1.0, float(exact[exact > -1e20].abs().max()))
        torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=tolerance)


@every_op
def test_no_positions_at_all(op: Op) -> None:
    """Outputs of length 0, states as they were, gradients of length 0."""
    inputs = [x.requires_grad_() for x in op.inputs(0)]
    found = outputs(op.function(*inputs))
    assert all(x.isfinite().all() for x in found)
    torch.autograd.grad(total(found), inputs, allow_unused=True)


def test_no_positions_leave_states_as_they_were() -> None:
    values, logits, mean = heads_last(0)
    state = pooling.PrefixMean(torch.randn(2, 2), mean)
    for kept, before in zip(pooling.prefix_softmax_mean(values, logits, None, state)[1], state, strict=True):
        assert torch.equal(kept, before)
    sums = linear.LinearSums(torch.randn(2, 2, 4, 4), torch.randn(2, 2, 4))
    empty = torch.randn(2, 2, 0, 4)
    for kept, before in zip(linear.causal_linear_attention(empty, empty, empty, None, sums)[1], sums, strict=True):
        assert torch.equal(kept, before)


def test_queries_over_no_keys_give_zeros() -> None:
    query, none = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 0, 4)
    nothing = torch.ones(2, 0, dtype=torch.bool)
    for mask in (None, nothing):
        for causal in (False, True):
            assert (attention.attention(query, none, none, mask, causal) == 0).all()
        assert (linear.linear_attention(query, none, none, mask) == 0).all()
        assert (pooling.softmax_pool(torch.randn(2, 0, 4), torch.randn(2, 0, 3), mask) == 0).all()
        assert (competition.position_softmax(torch.randn(2, 3, 0), mask).sum(2) == 0).all()


def test_no_positions_in_packed_documents() -> None:
    ids, x = torch.zeros(2, 0, dtype=torch.long), torch.randn(2, 0, 4)
    assert packing.document_starts(ids).shape == (2, 0)
    assert packing.document_starts(ids, ids.bool()).shape == (2, 0)
    assert packing.by_document(lambda x, mask: x, x, ids).shape == x.shape
    assert packing.left_aligned(lambda x, mask: x, x, ids.bool()).shape == x.shape


def scalar(op: Op) -> Callable[..., Tensor]:
    """Return a smooth scalar of all outputs but normalisers that have seen nothing."""

    def weighed(x: Tensor) -> Tensor:
        weights = torch.arange(1.0, x.numel() + 1, dtype=x.dtype).view(x.shape)
        return x.masked_fill(x < -1e20, 0).sin() * weights

    return lambda *inputs: total(weighed(x) for x in outputs(op.function(*inputs)))


def exact_inputs(op: Op) -> tuple[Tensor, ...]:
    return tuple(x.double().requires_grad_() for x in op.inputs(T))


def moved(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs)


@every_op
def test_forward_mode_is_the_backward_pass(op: Op) -> None:
    """Known failure elsewhere: operators of one's own drop tangents without a word."""
    inputs = exact_inputs(op)
    tangents = moved(inputs)
    gradients = torch.autograd.grad(scalar(op)(*inputs), inputs)
    expected = total(gradient * tangent for gradient, tangent in zip(gradients, tangents, strict=True))
    plain = tuple(x.detach() for x in inputs)
    torch.testing.assert_close(torch.func.jvp(scalar(op), plain, tangents)[1], expected)
    with torch.autograd.forward_ad.dual_level():
        duals = (torch.autograd.forward_ad.make_dual(x, t) for x, t in zip(plain, tangents, strict=True))
        found = torch.autograd.forward_ad.unpack_dual(scalar(op)(*duals)).tangent
    torch.testing.assert_close(found, expected)
    for found, gradient in zip(
        torch.func.grad(scalar(op), argnums=tuple(range(len(plain))))(*plain), gradients, strict=True
    ):
        torch.testing.assert_close(found, gradient)


def test_gradients_do_not_depend_on_those_of_clamp_at_its_bound() -> None:
    """Known failure: with PyTorch 2.15, plain operations ignored the largest feature of a query, and single edges."""
    at_zero = torch.zeros(3, dtype=torch.float64)
    assert torch.func.grad(lambda x: plain.features(x).sum())(at_zero).tolist() == [1, 1, 1]
    one = torch.zeros(1, dtype=torch.long)
    weights = torch.func.grad(lambda query: edges.edge_attention(query, query + 1, query, one, one).sum())(
        torch.ones(1, 1, 2, dtype=torch.float64)
    )
    assert weights.tolist() == [[[1, 1]]]


@every_op
def test_vmap_is_a_loop(op: Op) -> None:
    inputs = [tuple(x.detach() for x in exact_inputs(op)) for _ in range(3)]
    stacked = tuple(torch.stack(each) for each in zip(*inputs, strict=True))
    found = outputs(torch.func.vmap(op.function)(*stacked))
    expected = [torch.stack(each) for each in zip(*(outputs(op.function(*each)) for each in inputs), strict=True)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@every_op
def test_gradients_of_gradients(op: Op) -> None:
    """Against forward mode over a gradient, both of plain operations, in a direction: right, or refused by PyTorch."""
    inputs = exact_inputs(op)
    tangents = moved(inputs)
    everything = tuple(range(len(inputs)))
    plain = tuple(x.detach() for x in inputs)
    expected = torch.func.jvp(torch.func.grad(scalar(op), argnums=everything), plain, tangents)[1]

    def again() -> tuple[torch.Tensor, ...]:
        gradients = torch.autograd.grad(scalar(op)(*inputs), inputs, create_graph=True)
        along = total(gradient * tangent for gradient, tangent in zip(gradients, tangents, strict=True))
        return torch.autograd.grad(along, inputs)

    if op is OPS["attention"]:
        # More scores than plain products are faster for.
        with (
            mock.patch("longspan.ops.attention._few", return_value=False),
            pytest.raises(RuntimeError, match=r"derivative for aten::_scaled_dot_product.*is not implemented"),
        ):
            again()
    for found, wanted in zip(again(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@every_op
def test_several_gradients_at_once(op: Op) -> None:
    """`is_grads_batched`, by which Jacobians are found, runs a backward pass under vmap."""
    inputs = exact_inputs(op)
    out = outputs(op.function(*inputs))[0]
    upstream = torch.randn(3, *out.shape, dtype=out.dtype)
    if op in (OPS["relative"], OPS["window"], OPS["window, shared"], OPS["blocks"], OPS["depthwise"]):
        with pytest.raises(RuntimeError, match=r"vmap|Batching rule not implemented"):
            torch.autograd.grad(out, inputs, upstream, is_grads_batched=True, allow_unused=True)
        return
    expected = [torch.autograd.grad(out, inputs, each, retain_graph=True, allow_unused=True) for each in upstream]
    found = torch.autograd.grad(out, inputs, upstream, is_grads_batched=True, allow_unused=True)
    for batch, each in zip(found, zip(*expected, strict=True), strict=True):
        if batch is not None:
            torch.testing.assert_close(batch, torch.stack(each))
