"""The shape annotations of modules, checked while the suite runs.

`jaxtyping.install_import_hook` checks the same, at a third of the suite's time: it binds the arguments of each call to
their names, and checks them twice.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import jaxtyping
import numpy as np
import torch
from beartype import beartype

Function = Callable[..., Any]


def install(modules: Sequence[str]) -> None:
    """Check what is imported from now on of these modules, and of those inside them."""
    sys.meta_path.insert(0, _Finder(modules))


def shapes_checked(function: Function) -> Function:
    """Return the function, with shapes checked as well: a name of a size is one number throughout a call."""

    def with_sizes(function: Function) -> Function:
        typed = beartype(function)

        def call(*arguments: Any, **options: Any) -> Any:
            with jaxtyping.jaxtyped("context"):
                return typed(*arguments, **options)

        return call

    return _once(function, with_sizes)


def all_checked(function: Function) -> Function:
    """Return the function, with shapes checked that name other arguments, in braces, and those of generators."""
    checking: Function | None = None

    @wraps(function)
    def check(*arguments: Any, **options: Any) -> Any:
        nonlocal checking
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        checking = checking or jaxtyping.jaxtyped(function, typechecker=beartype)
        return checking(*arguments, **options)

    return check


def dataclass_checked(kind: type) -> type:
    """Return the class; the shapes that a dataclass is made of are checked."""
    if is_dataclass(kind) and "__init__" in vars(kind):
        kind.__init__ = shapes_checked(kind.__init__)  # type: ignore[method-assign]
    return kind


#: Types and sizes that passed, by the code of a function: those inside of functions are new in every call of these. By
#: its identity, as equal code may have other annotations.
_PASSED: dict[int, tuple[CodeType, set[Any]]] = {}


def _once(function: Function, checked: Callable[[Function], Function]) -> Function:
    """Return the function, `checked` for each combination of types and sizes: checks take longer than small products,
    and models call a function thousands of times with the same sizes."""
    passed = _PASSED.setdefault(id(function.__code__), (function.__code__, set()))[1]
    checking: Function | None = None

    @wraps(function)
    def check(*arguments: Any, **options: Any) -> Any:
        nonlocal checking
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        given = _sizes((arguments, options))
        known = given in passed
        if known:
            result = function(*arguments, **options)
        else:
            checking = checking or checked(function)
            result = checking(*arguments, **options)
        if given is not None:
            sizes = _sizes(result)
            both = given, sizes
            if known and (sizes is None or both not in passed):
                checked(wraps(function)(lambda *_, **__: result))(*arguments, **options)
            passed.update((given, both))
        return result

    return check


def _sizes(value: Any) -> Any:
    """Types and sizes in a value, to be looked up; None where sizes are symbols, as in exports, and of long lists."""
    try:
        found = _all_sizes(value)
        hash(found)
    except TypeError:
        return None
    return found


#: Most arguments are one of these: looked up, as this runs some hundred times in a forward pass.
_ARRAYS = {torch.Tensor, torch.nn.Parameter, np.ndarray}
_PLAIN = {bool, int, float, type(None), torch.dtype, torch.device}


def _all_sizes(value: Any) -> Any:
    kind = type(value)
    if kind in _ARRAYS:
        return kind, value.shape, value.dtype
    if kind in _PLAIN or isinstance(value, torch.nn.Module):
        return kind
    if isinstance(value, tuple | list):
        if len(value) > 100:
            raise TypeError
        return kind, *map(_all_sizes, value)
    if isinstance(value, dict):
        return kind, *((key, _all_sizes(each)) for key, each in value.items())
    if isinstance(value, torch.Tensor):
        raise TypeError
    return (kind, value) if kind is str else kind


class _Decorating(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(each, ast.Attribute) and each.attr == "jit" for each in node.decorator_list):
            # Another compiler's, which reads the source.
            return node
        arguments = [part for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        words = _words(node.returns, *(each.annotation for each in arguments))
        yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        kind = all_checked if yields or any("{" in word for word in words) else shapes_checked
        if words:
            # Innermost: other decorators may register what they get, or hide its annotations.
            node.decorator_list.append(_decorator(kind, node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if _words(*(part.annotation for part in node.body if isinstance(part, ast.AnnAssign))):
            # Outermost: `@dataclass` comes first.
            node.decorator_list.insert(0, _decorator(dataclass_checked, node))
        return node


def _words(*annotations: ast.AST | None) -> list[str]:
    """Names of sizes: texts in brackets. What has none is the business of mypy, as are names of classes as texts."""
    inside = [part for each in annotations if each for part in ast.walk(each) if isinstance(part, ast.Subscript)]
    parts = [part for each in inside for part in ast.walk(each.slice)]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _decorator(which: Function, above: ast.AST) -> ast.expr:
    made = ast.parse(f"__import__({__name__!r}).{which.__name__}", mode="eval").body
    for part in ast.walk(made):
        ast.copy_location(part, above)
    return made


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        return compile(_Decorating().visit(ast.parse(data)), path, "exec", dont_inherit=True, optimize=_optimize)

    def path_stats(self, path: str) -> Any:
        # Python's own bytecode is neither read nor written.
        raise OSError


class _Finder(MetaPathFinder):
    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not any(name == module or name.startswith(f"{module}.") for module in self.modules):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
