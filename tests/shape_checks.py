"""The shape annotations of modules, checked in every call while the suite runs.

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
from types import ModuleType
from typing import Any

import jaxtyping
from beartype import beartype

Function = Callable[..., Any]


def install(modules: Sequence[str]) -> None:
    """Check what is imported from now on of these modules, and of those inside them."""
    sys.meta_path.insert(0, _Finder(modules))


def types_checked(function: Function) -> Function:
    """Return the function, with the types of its arguments and of what it returns checked in every call."""
    return _checked(function, lambda: beartype(function))


def shapes_checked(function: Function) -> Function:
    """Return the function, with shapes checked as well: a name of a size is one number throughout a call."""

    def with_sizes() -> Function:
        typed = beartype(function)

        def call(*arguments: Any, **options: Any) -> Any:
            with jaxtyping.jaxtyped("context"):
                return typed(*arguments, **options)

        return call

    return _checked(function, with_sizes)


def all_checked(function: Function) -> Function:
    """Return the function, with shapes checked that name other arguments, in braces, and those of generators."""
    return _checked(function, lambda: jaxtyping.jaxtyped(function, typechecker=beartype))


def dataclass_checked(kind: type) -> type:
    """Return the class; what a dataclass is made of is checked."""
    if is_dataclass(kind) and "__init__" in vars(kind):
        kind.__init__ = types_checked(kind.__init__)  # type: ignore[method-assign]
    return kind


def _checked(function: Function, make: Callable[[], Function]) -> Function:
    checking: Function | None = None

    @wraps(function)
    def check(*arguments: Any, **options: Any) -> Any:
        nonlocal checking
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        # Made when it is needed: functions inside of functions are new in every call of these.
        checking = checking or make()
        return checking(*arguments, **options)

    return check


class _Decorating(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(each, ast.Attribute) and each.attr == "jit" for each in node.decorator_list):
            # Another compiler's, which reads the source.
            return node
        arguments = [part for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        annotations = [found for found in (node.returns, *(each.annotation for each in arguments)) if found]
        words = [
            part.value
            for annotation in annotations
            for part in ast.walk(annotation)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        kind = all_checked if yields or any("{" in word for word in words) else shapes_checked
        if annotations:
            # Innermost: other decorators may register what they get, or hide its annotations.
            node.decorator_list.append(_decorator(kind if words else types_checked, node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        # Outermost: `@dataclass` comes first.
        node.decorator_list.insert(0, _decorator(dataclass_checked, node))
        return node


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
