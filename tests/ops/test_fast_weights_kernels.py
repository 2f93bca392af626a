"""The kernels over a matrix per head, in Triton's interpreter: against the naive forms and plain operations."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from kernel_errors import fast_weights_errors
from rounding import assert_within, rounding
from torch import Tensor
from triton_interpreter import kernels_on_cpu, needs_triton, second_derivatives

from longspan.ops import fast_weights as module
from longspan.ops.delta import gated_delta_rule_naive
from longspan.ops.fast_weights import fast_weights, fast_weights_gradient, fast_weights_operator, plain
from longspan.ops.gated_linear import gated_linear_attention_naive

pytestmark = needs_triton
every_kind = pytest.mark.parametrize("kind", ["delta", "head", "channel"])


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "chunk_size", plain.gpu_chunk)
    with kernels_on_cpu(fast_weights_operator, fast_weights_gradient):
        yield


def inputs(kind: str, t: int, e: int, v: int, rate: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Tensors of a row and 2 heads as a mixer has them: heads come after positions in memory."""
    query, key, value = (torch.randn(1, t, 2, width, dtype=dtype).transpose(1, 2) for width in (e, e, v))
    strength = torch.rand(1, t, 2, dtype=dtype).transpose(1, 2) if kind == "delta" else None
    rates = rate * torch.rand(1, t, 2, *[e] * (kind == "channel"), dtype=dtype).transpose(1, 2)
    state = torch.randn(1, 2, e, v, dtype=dtype)
    return [query, torch.nn.functional.normalize(key, dim=-1), value, strength, rates, state]


def results(function: Callable[..., tuple[Tensor, Tensor]], given: list[Any], **options: int) -> list[Tensor]:
    """Return outputs, last matrices, and the gradients of all inputs."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in given]
    found = function(*leaves, **options)
    gradients = torch.autograd.grad(found, [x for x in leaves if x is not None], upstream_of(found))
    return [*(x.detach() for x in found), *gradients]


def upstream_of(found: Iterable[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).to(x.dtype) for x in found]


def naive(*given: Any) -> tuple[Tensor, Tensor]:
    if given[3] is not None:
        return gated_delta_rule_naive(*given)
    return gated_linear_attention_naive(*given[:3], *given[4:])


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize(
    ("t", "e", "v", "rate"), [(2, 1, 1, 1.0), (15, 3, 5, 0.0), (33, 5, 3, 1e3), (33, 65, 1, 0.1), (66, 3, 17, 0.1)]
)
def test_kernels_are_the_recurrence(kind: str, t: int, e: int, v: int, rate: float) -> None:
    """Lengths are not multiples of a chunk, nor widths of a block; 17 columns are divided among programs."""
    # Chunks are half as long.
    t = max(2, (t + 1) // 2) if kind == "channel" else t
    given = inputs(kind, t, e, v, rate)
    torch.testing.assert_close(results(fast_weights, given, backwards=0), results(naive, given))


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("backwards", [1, 2])
def test_heads_read_from_the_end(kind: str, backwards: int) -> None:
    given = inputs(kind, 19, 4, 3)
    found, expected = (results(each, given, backwards=backwards) for each in (fast_weights, plain.fast_weights))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@every_kind
def test_errors_of_kernels_are_those_of_rounding(kind: str) -> None:
    given = inputs(kind, 40, 8, 8, 0.1, torch.float32)
    exact = results(plain.fast_weights, [None if x is None else x.double() for x in given], backwards=1)
    allowed = fast_weights_errors(given, upstream_of(exact[:2]), 1, plain.GPU_CHUNK)
    for found, expected, error in zip(results(fast_weights, given, backwards=1), exact, allowed, strict=True):
        assert_within(found, expected, error)


@pytest.mark.slow
@every_kind
def test_rates_of_any_size_stay_finite(kind: str) -> None:
    """Known failure elsewhere: factors exp(G) of the keys of a chunk overflow where gates are small."""
    given = inputs(kind, 18, 4, 3, 1e6, torch.float32)
    assert all(x.isfinite().all() for x in results(fast_weights, given, backwards=0))


def test_the_same_key_again_and_again_costs_no_digits() -> None:
    """Known failure elsewhere: inverting the triangular matrix by powers of it, whose binomials cancel."""
    keys, values = torch.ones(1, 1, 100, 4) / 2, torch.randn(1, 1, 100, 5)
    ones, zeros = torch.ones(1, 1, 100), torch.zeros(1, 1, 100)
    out, _ = fast_weights(keys, keys, values, ones, zeros, torch.zeros(1, 1, 4, 5), backwards=0)
    # What is read is the last value written, after as many roundings as a chunk has positions and a key has numbers.
    assert_within(out, values.double(), rounding(2 * (plain.GPU_CHUNK + 4), values.abs().max(), torch.float32))


@pytest.mark.slow
def test_the_forward_pass_saves_nothing_that_no_gradient_needs() -> None:
    query, key, value, strength, rates, state = (x.transpose(1, 2) for x in inputs("delta", 40, 4, 3))
    state = state.transpose(1, 2)
    for saves, chunks in ((False, 0), (True, 2)):
        _, _, borders = fast_weights_operator(query, key, value, strength, rates, state, 0, saves)
        assert borders.shape == (1, chunks, 2, 4, 3)


@pytest.mark.slow
@every_kind
def test_derivatives_of_gradients(kind: str) -> None:
    given = inputs(kind, 5, 3, 2)

    def read(function: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        def out(*tensors: Tensor) -> Tensor:
            rest = iter(tensors)
            return function(*(x if x is None else next(rest) for x in given), backwards=1)[0]

        return second_derivatives(out, [x for x in given if x is not None])

    torch.testing.assert_close(read(fast_weights), read(plain.fast_weights))
