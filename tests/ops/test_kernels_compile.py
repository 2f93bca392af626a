"""Kernels compile for a GPU, without one: what Triton's interpreter runs, its compiler may refuse.

Blocks are the smallest, for which compiling takes least. What comes out is not run.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
from triton_interpreter import needs_triton

pytestmark = needs_triton
WHOLE = {"t", "h", "e", "v", "d", "backwards", "chunks", "blocks", "parts", "hidden"}
DELTA = {"DELTA": True, "PER_CHANNEL": False, "T": 16, "E": 16}
CHANNEL = {**DELTA, "DELTA": False, "PER_CHANNEL": True}
SUMS, POOL = {"T": 16, "E": 16, "V": 16}, {"D": 16, "H": 16, "HIDDEN": -5e29}
KERNELS: list[tuple[str, str, dict[str, Any]]] = [
    ("scan.triton", "_lerp_forward", {"PER_CHANNEL": False, "T": 16, "E": 4}),
    ("scan.triton", "_lerp_backward", {"PER_CHANNEL": False, "T": 16, "E": 4}),
    ("scan.triton", "_gates_forward", {"STARTS": True, "RATES": True, "T": 16, "H": 4}),
    ("scan.triton", "_gates_backward", {"STARTS": True, "T": 16, "H": 4}),
    ("softmax_pool.triton", "_forward", {"T": 16, **POOL}),
    ("softmax_pool.triton", "_merge", POOL),
    ("softmax_pool.triton", "_backward", {"T": 16, **POOL}),
    ("linear_sums.triton", "_sum", {"QUERY": True, "MASKED": False, **SUMS}),
    ("linear_sums.triton", "_sum", {"QUERY": False, "MASKED": True, **SUMS}),
    ("linear_sums.triton", "_sum_backward", {"MASKED": True, **SUMS}),
    ("linear_sums.triton", "_read", {"TINY": 1e-20, **SUMS}),
    ("linear_sums.triton", "_read_backward", SUMS),
    ("fast_weights.triton_forward", "chunks", DELTA),
    ("fast_weights.triton_forward", "chunks", CHANNEL),
    ("fast_weights.triton_forward", "forward", {"SAVES": True, "V": 16, **DELTA}),
    ("fast_weights.triton_backward", "carry_back", {"V": 16, **DELTA}),
    ("fast_weights.triton_backward", "backward", {"V": 16, **DELTA}),
    ("fast_weights.triton_backward", "backward", {"V": 16, **CHANNEL}),
]


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "constants"), KERNELS)
def test_kernels_compile(module: str, name: str, constants: dict[str, Any]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    kernel = getattr(importlib.import_module(f"longspan.ops.{module}"), name)
    kinds = dict.fromkeys(kernel.arg_names, "*fp32") | {"mask": "*u8", "starts": "*u8"}
    kinds |= {argument: "fp32" if argument == "hidden" else "i32" for argument in WHOLE}
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {argument: kinds[argument] for argument in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=constants)
    # As an H100 has it.
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
