"""Kernels compile for a GPU, without one, with the blocks and warps that run: what Triton's interpreter runs, its
compiler may refuse. What comes out is not run.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_interpreter import needs_triton

pytestmark = needs_triton
KINDS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
}
OPTIONS = {"num_warps", "num_stages"}
# As a T4, an A100 and an H100 have it.
CAPABILITIES = {torch.float16: 75, torch.float32: 80, torch.bfloat16: 90, torch.float64: 90}
# Bytes that all threads of a program can share there: a kernel that wants more does not start.
SHARED = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10}
EVERY = (torch.float32, torch.float16, torch.bfloat16)


def lerp(dtype: torch.dtype, heads: int, width: int, per_channel: bool) -> list[tuple[str, list[torch.Tensor]]]:
    values, initial = torch.empty(2, 300, heads, width, dtype=dtype), torch.empty(2, heads, width, dtype=dtype)
    gates = values if per_channel else values[..., 0].contiguous()
    return [
        ("lerp_forward", [values, gates, initial, values, initial]),
        ("lerp_backward", [values, initial, values, gates, initial, values, values, gates, initial]),
    ]


def gates(dtype: torch.dtype, heads: int, starts: bool, rates: bool) -> list[tuple[str, list[torch.Tensor]]]:
    logits, initial = torch.empty(2, 300, heads, dtype=dtype), torch.empty(2, heads, dtype=dtype)
    where = torch.empty(2, 300 * starts, dtype=torch.bool)
    fading = torch.empty(2, 300 * rates, heads, dtype=dtype)
    return [
        ("gates_forward", [logits, initial, where, fading, logits, initial]),
        ("gates_backward", [logits, initial, logits, where, logits, initial, logits]),
    ]


def pool(dtype: torch.dtype, positions: int, width: int, heads: int) -> list[tuple[str, list[torch.Tensor]]]:
    sums = torch.promote_types(dtype, torch.float32)
    values, logits = (torch.empty(2, positions, width, dtype=dtype), torch.empty(2, positions, heads, dtype=sums))
    pooled, largest = torch.empty(2, heads, width, dtype=sums), torch.empty(2, heads, dtype=sums)
    return [
        ("forward", [values, logits, pooled, largest, largest]),
        ("backward", [pooled, values, logits, pooled, largest, largest, values, logits]),
    ]


CASES: list[tuple[str, Callable[..., Any], torch.dtype, tuple[Any, ...]]] = [
    *(("scan", lerp, dtype, (4, 64, False)) for dtype in (*EVERY, torch.float64)),
    *(("scan", lerp, torch.float32, (16, width, True)) for width in (16, 128)),
    *(("scan", gates, dtype, (4, True, True)) for dtype in (*EVERY, torch.float64)),
    ("scan", gates, torch.float32, (16, False, False)),
    *(("softmax_pool", pool, dtype, (4096, 1024, 16)) for dtype in EVERY),
    *(("softmax_pool", pool, torch.bfloat16, shape) for shape in ((1, 16, 1), (65536, 64, 4))),
]


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    # As before: Triton 3.9 warns that the next release changes it.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "calls", "dtype", "shape"), CASES)
def test_kernels_compile(
    folder: str,
    calls: Callable[..., Any],
    dtype: torch.dtype,
    shape: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    module = importlib.import_module(f"longspan.ops.{folder}.triton")
    compiled = []

    class Launched:
        """Compiles the kernel that a launch would."""

        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(1 <= size < 65536 for size in grid[1:])
            return self.compile

        def compile(self, *arguments: Any, **named: Any) -> None:
            options = {name: named.pop(name) for name in OPTIONS & set(named)}
            given = inspect.signature(self.kernel.fn).bind(*arguments, **named).arguments
            kinds = {name: _kind(value) for name, value in given.items()} | dict.fromkeys(named, "constexpr")
            # As a launch does: addresses and sizes that 16 divides let loads be wide, and read ahead.
            wide = {
                (place,): [["tt.divisibility", 16]]
                for place, name in enumerate(inspect.signature(self.kernel.fn).parameters)
                if name not in named and (isinstance(given[name], torch.Tensor) or given[name] % 16 == 0)
            }
            source = triton.compiler.ASTSource(self.kernel, kinds, constexprs=named, attrs=wide)
            capability = CAPABILITIES[dtype]
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            assert made.metadata.shared <= SHARED[capability]
            compiled.append(made.asm["cubin"])

    for name, kernel in vars(module).copy().items():
        if isinstance(kernel, triton.JITFunction):
            monkeypatch.setattr(module, name, Launched(kernel) if _is_launched(name) else kernel)
    for name, tensors in calls(dtype, *shape):
        getattr(module, name)(*tensors)
    assert len(compiled) >= 2
    assert all(compiled)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return KINDS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _is_launched(name: str) -> bool:
    """Kernels call others, which stay as they are."""
    return name.endswith(("_forward", "_merge", "_backward"))
