"""Operators of PyTorch from short declarations: torch.compile and torch.export see them as such.

A function that makes the empty results of an operator declares it: its signature is the operator's schema, and
compilers, which know shapes alone, call it instead of the operator. Every device runs the plain form. A CPU runs
compiled loops of the folder's `numba.py` where Numba is installed, a GPU kernels of its `triton.py` where Triton is.
Both take all tensors, then those to fill, then other arguments. Tensors are contiguous; loops take NumPy arrays, of
half precision as float32.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, infer_schema
from torch.utils.flop_counter import register_flop_formula

from longspan.ops.execution import (
    TRITON,
    accumulation_dtype,
    differentiated_further,
    plain_gradients,
    without_autocast,
)

Function = Callable[..., Any]
NUMBA = importlib.util.find_spec("numba") is not None
# Folders with a kernel for a GPU that did not compile or start. Plain forms then replace all kernels of the folder, as
# kernels of the backward pass rely on what those of the forward pass have saved.
_failed: set[str] = set()


def may_run(folder: str) -> bool:
    """Return whether all kernels of a folder that were called have run."""
    return folder not in _failed


def replace_kernels(folder: str, kernel: str, error: Exception, package: str = "") -> None:
    """Have plain operations replace the kernels of a folder from now on, and warn of it.

    Args:
        folder: Module of the operators.
        kernel: Name of the kernel that did not compile or start.
        error: What it raised.
        package: Name of the package that it is from, if it is not ours.
    """
    _failed.add(folder)
    versions = [f"{package} {_version(package)}"] if package else []
    if TRITON:
        versions.append(f"Triton {_version('triton')}")
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    warnings.warn(
        f"the kernel '{kernel}' does not run with {' and '.join(versions)} ({reason}): slower plain operations replace "
        f"the kernels of '{folder}'; please report this sentence with the output of "
        "`python -m torch.utils.collect_env`",
        RuntimeWarning,
        stacklevel=3,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # Builds of others have other names.
        return "of an unknown version"


def operator(
    name: str, plain: Function, *, loops: str = "", kernels: str = "", flops: Function | None = None
) -> Callable[[Function], "Operator"]:
    """Declare an operator by the function that makes its empty results.

    `plain` computes them from the same arguments. `loops` and `kernels` name functions of the folder's `numba.py` and
    `triton.py`, and `flops` counts operations from the shapes of the arguments.
    """

    def declare(empty_results: Function) -> Operator:
        declared = Operator(name, empty_results, plain, loops, kernels)
        if flops:
            packet = getattr(torch.ops.longspan, name.removeprefix("longspan::"))
            register_flop_formula(packet)(lambda *shapes, **_: flops(*shapes))
        return declared

    return declare


class Operator:
    """A function of tensors, of which PyTorch has the `definition`."""

    def __init__(self, name: str, empty_results: Function, plain: Function, loops: str, kernels: str) -> None:
        self.name, self.parameters = name, list(inspect.signature(empty_results).parameters)
        self._empty_results, self._plain, self._loops, self._kernels = empty_results, plain, loops, kernels
        self._folder = empty_results.__module__
        schema = infer_schema(empty_results, mutates_args=())
        self.definition = custom_op(name, self._run_plain, mutates_args=(), schema=schema)
        self.definition.register_fake(empty_results)
        # Numba and Triton are slow to import: the first call waits for them, and nothing else does.
        if loops and NUMBA:
            self.definition.register_kernel("cpu")(self._run_loops)
        if kernels and TRITON:
            self.definition.register_kernel("cuda")(self._run_kernels)

    def __call__(self, *arguments: Any) -> Any:
        return self.definition(*arguments)

    def _run_plain(self, *arguments: Any) -> Any:
        with without_autocast(arguments[0]):
            results = self._plain(*arguments)
        return results.contiguous() if isinstance(results, Tensor) else tuple(x.contiguous() for x in results)

    def _run_loops(self, *arguments: Any) -> Any:
        tensors, options = _split(arguments)
        results = self._empty_results(*arguments)
        exact = [_exact(x) for x in _tuple(results)]
        arrays = [x.numpy() for x in (*map(_exact, tensors), *exact)]
        self._function("numba", self._loops)(*arrays, *options)
        rounded = tuple(x.to(y.dtype) for x, y in zip(exact, _tuple(results), strict=True))
        return rounded[0] if isinstance(results, Tensor) else rounded

    def _run_kernels(self, *arguments: Any) -> Any:
        if may_run(self._folder):
            tensors, options = _split(arguments)
            results = self._empty_results(*arguments)
            try:
                kernel = self._function("triton", self._kernels)
                kernel(*(x.contiguous() for x in tensors), *_tuple(results), *options)
                return results
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                replace_kernels(self._folder, f"{self._folder}.triton.{self._kernels}", error)
        return self._run_plain(*arguments)

    def _function(self, module: str, name: str) -> Function:
        function: Function = getattr(importlib.import_module(f"{self._folder}.{module}"), name)
        return function

    def gradient(
        self, results: tuple[str, ...], plain: Function | None = None, *, loops: str = "", kernels: str = ""
    ) -> Callable[[Function], "Operator"]:
        """Declare the operator of the gradients by the function that makes them empty.

        Its parameters are the gradients of the first results, and then what it needs of this operator's parameters and
        `results`, by name. It returns the gradients of floating-point tensors in their order; the last of these may
        have none. Without a `plain` form, it is PyTorch's derivative of that of this operator.
        """

        def declare(empty_gradients: Function) -> Operator:
            needed = list(inspect.signature(empty_gradients).parameters)
            count = sum(name not in (*self.parameters, *results) for name in needed)
            form = plain or functools.partial(self._differentiate, needed, count)
            backward = operator(f"{self.name}_backward", form, loops=loops, kernels=kernels)(empty_gradients)

            def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                known = dict(zip(self.parameters, inputs, strict=True))
                known |= {name: x for name, x in zip(results, _tuple(output), strict=True) if name in needed}
                ctx.options = {name: x for name, x in known.items() if not isinstance(x, Tensor)}
                ctx.tensors = [name for name in known if name not in ctx.options]
                ctx.save_for_backward(*(known[name] for name in ctx.tensors))

            def run(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
                known = ctx.options | dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
                inputs, upstream = [known[name] for name in self.parameters], upstream[:count]
                if differentiated_further():
                    return plain_gradients(lambda *x: _tuple(self._plain(*x))[:count], inputs, upstream)
                found = iter(_tuple(backward(*upstream, *(known[name] for name in needed[count:]))))
                gradients = [next(found, None) if _is_floating(x) else None for x in inputs]
                wanted = zip(gradients, ctx.needs_input_grad, strict=False)
                return tuple(gradient if needs_it else None for gradient, needs_it in wanted)

            self.definition.register_autograd(run, setup_context=save)
            return backward

        return declare

    def _differentiate(self, needed: list[str], count: int, *arguments: Any) -> Any:
        """The gradients in plain operations. Autograd does nothing within an operator, but torch.func does."""
        known = dict(zip(needed, arguments, strict=True))
        inputs = {name: known[name] for name in self.parameters if name in known}
        names = [name for name, x in inputs.items() if _is_floating(x)]

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            return _tuple(self._plain(**inputs | dict(zip(names, tensors, strict=True))))[:count]

        pull_back = torch.func.vjp(function, *(inputs[name] for name in names))[1]
        gradients: tuple[Tensor, ...] = pull_back(arguments[:count])
        return gradients if len(gradients) > 1 else gradients[0]


def empty(tensor: Tensor) -> Tensor:
    """A new contiguous tensor of the same shape, type and device."""
    return tensor.new_empty(tensor.shape)


def _exact(tensor: Tensor) -> Tensor:
    dtype = accumulation_dtype(tensor.dtype) if tensor.is_floating_point() else tensor.dtype
    return tensor.to(dtype).contiguous()


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _split(arguments: tuple[Any, ...]) -> tuple[list[Tensor], list[Any]]:
    """Tensors and other arguments."""
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    return tensors, [x for x in arguments if not isinstance(x, Tensor)]


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
