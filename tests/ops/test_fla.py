"""A matrix per head by the kernels of flash-linear-attention: which tensors get them, and what is handed over.

In place of the kernels, which need a GPU, the library's own naive forms run on a CPU.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rounding import assert_within, rounding
from torch import Tensor

from longspan.ops import linear, operators
from longspan.ops.delta import gated_delta_rule, gated_delta_rule_naive
from longspan.ops.fast_weights import fla
from longspan.ops.gated_linear import gated_linear_attention, gated_linear_attention_naive

NAMES = {"delta": "gated_delta_rule", "head": "simple_gla", "channel": "gla"}
every_kind = pytest.mark.parametrize("kind", NAMES)
needs_fla = pytest.mark.skipif(not fla.INSTALLED, reason="fla-core is not installed (longspan[gpu]).")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU.")


@pytest.fixture(autouse=True)
def _nothing_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_failed", set())


def inputs(kind: str, t: int = 37, e: int = 4, v: int = 3) -> list[Tensor]:
    """Queries, keys, values, strengths of the delta rule, rates and a state, which have exact values in bfloat16."""
    query, key, value = (torch.randn(2, 3, t, width) for width in (e, e, v))
    key = torch.nn.functional.normalize(key, dim=-1)
    strengths = [torch.rand(2, 3, t)] if kind == "delta" else []
    rates = torch.rand(2, 3, t, *[e] * (kind == "channel"))
    return [x.bfloat16().float() for x in (query, key, value, *strengths, rates, torch.randn(2, 3, e, v))]


def compute(kind: str, given: list[Tensor], backwards: int = 0) -> tuple[Tensor, Tensor]:
    function: Callable[..., tuple[Tensor, Tensor]] = gated_delta_rule if kind == "delta" else gated_linear_attention
    return function(*given, backwards=backwards)


def naive(kind: str, given: list[Tensor]) -> tuple[Tensor, Tensor]:
    return (gated_delta_rule_naive if kind == "delta" else gated_linear_attention_naive)(*given)


def naive_form(kind: str) -> Callable[..., Any]:
    """The library's own form of an operation, called as its kernels are."""
    name = NAMES[kind]
    library = importlib.util.find_spec("fla")
    assert library is not None
    assert library.submodule_search_locations is not None
    (folder,) = library.submodule_search_locations
    spec = importlib.util.spec_from_file_location(name, Path(folder, "ops", name, "naive.py"))
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    form = getattr(source, f"naive_recurrent_{name}")

    def called(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None, **settings: Any) -> Any:
        # Their scale is that of keys unless it is given.
        q = q.float() * settings.pop("scale") * k.shape[-1] ** 0.5
        return form(q, k, v, g=g, beta=beta, **settings) if beta is not None else form(q, k, v, g, **settings)

    return called


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Have a function run for tensors of a CPU as a kernel of an operation."""

    def install(kind: str, function: Callable[..., Any]) -> None:
        library = SimpleNamespace(ops=SimpleNamespace(**{f"chunk_{NAMES[kind]}": function}))
        monkeypatch.setitem(sys.modules, "fla", library)
        monkeypatch.setattr(fla, "has_kernels", lambda query: operators.may_run(fla.__name__))

    return install


@needs_fla
@every_kind
@pytest.mark.parametrize("backwards", [0, 1])
def test_it_is_the_recurrence(kind: str, backwards: int, kernels: Callable[..., None]) -> None:
    given = inputs(kind)
    kernels(kind, naive_form(kind))
    found = compute(kind, given, backwards=backwards)
    turned = [fla.reversed_heads(x, backwards).double() for x in given[:-1]]
    out, last = naive(kind, [*turned, given[-1].double()])
    # Their forms compute in float32.
    torch.testing.assert_close(found, (fla.reversed_heads(out, backwards).float(), last.float()), rtol=1e-4, atol=1e-5)


@every_kind
def test_types_that_are_handed_over(kind: str, kernels: Callable[..., None]) -> None:
    seen: dict[str, Any] = {}

    def kernel(*tensors: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
        seen.update(tensors=tensors, **settings)
        return tensors[2], settings["initial_state"]

    kernels(kind, kernel)
    *given, state = inputs(kind)
    out, last = compute(kind, [x.bfloat16() for x in given] + [state])
    query, key, value, gates, *strengths = seen["tensors"]
    assert {x.dtype for x in (query, key, value, *strengths)} == {torch.bfloat16}
    assert query.shape == (2, 37, 3, 4)
    torch.testing.assert_close(gates, -given[-1].transpose(1, 2))
    assert (seen["scale"], seen["output_final_state"], last.dtype) == (1.0, True, torch.float32)
    assert torch.equal(out, given[2].bfloat16())


@every_kind
def test_plain_operations_replace_kernels_that_do_not_run(kind: str, kernels: Callable[..., None]) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of resource: shared memory\nmore of this")

    given = inputs(kind)
    expected = compute(kind, given)
    kernels(kind, fails)
    with pytest.warns(RuntimeWarning, match=rf"chunk_{NAMES[kind]}' does not run with fla-core .* \(out of resource: "):
        found = compute(kind, given)
    # Without another warning, which would be an error.
    torch.testing.assert_close([found, compute(kind, given)], [expected, expected], rtol=1e-4, atol=1e-5)


def test_missing_memory_is_no_failure_of_a_kernel(kernels: Callable[..., None]) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    kernels("delta", run_out)
    with pytest.raises(torch.OutOfMemoryError):
        compute("delta", inputs("delta"))
    assert not operators._failed


@needs_fla
@pytest.mark.parametrize("masked", [False, True])
def test_causal_linear_attention(masked: bool, kernels: Callable[..., None]) -> None:
    query, key, value = (torch.randn(2, 3, 20, 4) for _ in range(3))
    mask = torch.rand(2, 20) < 0.7 if masked else None
    state = linear.empty_sums(2, 3, 4)
    kernels("head", naive_form("head"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "on_cpu", lambda tensor: False)
        out, _ = linear.causal_linear_attention(query, key, value, mask, state)
    expected = linear.linear_attention_naive(query.double(), key.double(), value.double(), mask, causal=True)
    torch.testing.assert_close(out, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "width", "served"),
    [
        (torch.bfloat16, fla.WIDEST, True),
        (torch.bfloat16, fla.WIDEST + 1, False),
        (torch.float16, 64, False),
        (torch.float32, 64, False),
    ],
)
def test_tensors_with_kernels(dtype: torch.dtype, width: int, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "INSTALLED", True)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert fla.has_kernels(torch.empty(1, 1, 2, width, dtype=dtype, device="cuda")) == served
    assert not fla.has_kernels(torch.empty(1, 1, 2, width, dtype=dtype))
    monkeypatch.setattr(fla, "INSTALLED", False)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert not fla.has_kernels(torch.empty(1, 1, 2, width, dtype=dtype, device="cuda"))


@pytest.mark.slow
@needs_fla
@pytest.mark.usefixtures("no_shape_checks")
def test_compiled_programs(kernels: Callable[..., None]) -> None:
    given = inputs("channel")
    expected = compute("channel", given)
    # As the library's functions are.
    kernels("channel", torch.compiler.disable(naive_form("channel")))
    found = torch.compile(compute, backend="aot_eager")("channel", given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_fla
@needs_gpu
@every_kind
@pytest.mark.parametrize("shape", [(65, 16, 16), (300, 64, 64), (1000, 128, 128)])
def test_kernels_on_a_gpu(kind: str, shape: tuple[int, int, int]) -> None:
    """cuda: the kernels themselves, against the recurrence in float64."""
    given = inputs(kind, *shape)
    exact = [x.double().requires_grad_() for x in given]
    half = [x.cuda().to(torch.bfloat16 if x.shape[2] == shape[0] else x.dtype).requires_grad_() for x in given]
    assert fla.has_kernels(half[0])
    (out, last), (right, right_last) = compute(kind, half), naive(kind, exact)
    assert not operators._failed
    upstream = torch.randn(right.shape).bfloat16().double()
    expected = [right, right_last, *torch.autograd.grad(right, exact[:3], upstream)]
    found = [out, last, *torch.autograd.grad(out, half[:3], upstream.cuda().bfloat16())]
    for ours, reference in zip(found, expected, strict=True):
        # Products have rounded operands, such as matrices of earlier positions, three of them one after the other.
        assert_within(ours.cpu(), reference, rounding(8, reference.abs().max(), torch.bfloat16))
