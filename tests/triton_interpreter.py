"""Triton's interpreter, which runs kernels for a GPU on a CPU, in a copy of Triton that other tests do not see.

Triton decides when a kernel is defined whether it will be interpreted, so kernels and Triton itself are imported anew.
"""

import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import pytest
import torch
from torch import Tensor

from longspan.ops.operators import Operator

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: it has packages for Linux only."
)
# All but its library, of which a process has one.
_OURS = re.compile(r"triton(?!\._C\b)(\..*)?|longspan\.ops\.\w+\.triton")
_copies: dict[str, ModuleType] = {}


@contextmanager
def interpreter() -> Iterator[None]:
    """Have imports of Triton, and of kernels, return those that are interpreted."""
    # What PyTorch imports at the first call of an operator belongs to the usual Triton.
    import torch._dynamo  # noqa: F401

    usual = _taken_out()
    sys.modules.update(_copies)
    try:
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
            yield
    finally:
        _copies.update(_taken_out())
        sys.modules.update(usual)
        for name, module in usual.items():
            _assign(name, module)


def _taken_out() -> dict[str, ModuleType]:
    found = {name: sys.modules.pop(name) for name in list(sys.modules) if _OURS.fullmatch(name)}
    for name in found:
        parent, _, last = name.rpartition(".")
        if parent.startswith("longspan"):
            vars(sys.modules[parent]).pop(last, None)
    return found


def _assign(name: str, module: ModuleType) -> None:
    parent, _, last = name.rpartition(".")
    if parent.startswith("longspan"):
        setattr(sys.modules[parent], last, module)


@contextmanager
def gpu_forms_on_cpu(*operators: Operator) -> Iterator[None]:
    """Have operators do with tensors of a CPU what they do with those of a GPU."""
    with torch.library._scoped_library("longspan", "IMPL") as library:
        with warnings.catch_warnings():
            # That there was another one.
            warnings.simplefilter("ignore", UserWarning)
            for each in operators:
                library.impl(each.name, each._run_kernels, "CPU", allow_override=True)
        yield


@contextmanager
def kernels_on_cpu(*operators: Operator) -> Iterator[None]:
    """Have operators run interpreted kernels of a GPU for tensors of a CPU, through everything that is around them."""
    with interpreter(), gpu_forms_on_cpu(*operators):
        yield


def second_derivatives(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Return derivatives of the squares of a function's gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    first = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
    return list(torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), leaves))
