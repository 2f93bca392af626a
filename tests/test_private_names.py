"""Private names of other packages: each one that longspan overrides or reads exists in the installed release.

A release of transformers that renames `Trainer._run_epoch` breaks nothing that Python notices: ours would not be called
any more. So overridden private methods are marked with `typing_extensions.override`, and every mark is checked here, as
is every private name of another package that the sources mention.
"""

import ast
import functools
import importlib.util
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer
from typing_extensions import override

import longspan

ROOT = Path(longspan.__file__).parent

#: Private names that the sources mention on other objects than `self`, and the owners that they have there.
MENTIONED = {
    "_actions": ["argparse:ArgumentParser"],
    "_attn_implementation": ["transformers:PreTrainedConfig"],
    "_backward_hooks": ["torch.nn:Module"],
    "_backward_pre_hooks": ["torch.nn:Module"],
    "_blocks": ["longspan.models.states:MixerStates"],
    "_buffers": ["torch.nn:Module"],
    "_C": ["torch"],
    "_are_functorch_transforms_active": ["torch._C"],
    "_compute_score_from_stats": ["sacrebleu.metrics:BLEU", "sacrebleu.metrics:CHRF"],
    "_current_level": ["torch.autograd.forward_ad"],
    "_dynamo": ["torch"],
    "_extract_corpus_statistics": ["sacrebleu.metrics:BLEU", "sacrebleu.metrics:CHRF"],
    "_fingerprint": ["datasets:Dataset"],
    "_forward_hooks": ["torch.nn:Module"],
    "_forward_pre_hooks": ["torch.nn:Module"],
    "_from_config": ["transformers:PreTrainedModel"],
    "_functorch": ["torch._C"],
    "_hf_hook": ["accelerate.hooks:add_hook_to_module"],
    "_indices": ["datasets:Dataset"],
    "_is_exporting_flag": ["torch.compiler"],
    "_int_mm": ["torch", "torch:ops.aten"],
    "_is_mkldnn_bf16_supported": ["torch:ops.mkldnn"],
    "_is_stateful": ["transformers:PreTrainedModel"],
    "_n_gpu": ["transformers:TrainingArguments"],
    "_no_split_modules": ["transformers:PreTrainedModel"],
    "_ops": ["torch"],
    "_qkv_same_embed_dim": ["torch.nn:MultiheadAttention"],
    "_supports_sdpa": ["transformers:PreTrainedModel"],
}


#: Documented names of named tuples and of `os`.
DOCUMENTED = ("_asdict", "_exit", "_fields", "_replace")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


distributions = functools.cache(metadata.packages_distributions)


def release(module: str) -> str:
    """A package and its version, such as "transformers 5.23.0"."""
    package = module.partition(".")[0]
    known = distributions().get(package)
    return f"{package} {metadata.version(known[0])}" if known else package


def has(owner: Any, name: str) -> bool:
    """Whether a class, a module or a function has a private name: as an attribute, or as one that it sets."""
    if hasattr(owner, name) or name in getattr(owner, "__annotations__", {}):
        return True
    try:
        return re.search(rf"\.{name}\b", inspect.getsource(owner)) is not None
    except (OSError, TypeError):
        return False


# Classes


@functools.cache
def classes() -> list[type]:
    """The classes of longspan that derive from a class of another package."""
    names = [each.name for each in pkgutil.walk_packages(longspan.__path__, "longspan.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type) and is_own(each)}
    return sorted((each for each in found if foreign(each)), key=lambda each: (each.__module__, each.__qualname__))


def is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("longspan", __name__)


def foreign(kind: type) -> list[type]:
    """The classes of other packages that a class derives from, without those of Python's core."""
    core = ("builtins", "abc", "typing", "enum")
    return [each for each in kind.__mro__ if not is_own(each) and each.__module__ not in core]


@functools.cache
def body(kind: type) -> ast.ClassDef:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    return found


def methods(kind: type) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in body(kind).body if isinstance(each, ast.FunctionDef) and is_private(each.name)}


def is_marked(method: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "override" for each in method.decorator_list)


def class_attributes(kind: type) -> set[str]:
    """Private names that a class body gives a value."""
    targets: list[ast.expr] = []
    for each in body(kind).body:
        if isinstance(each, ast.Assign):
            targets += each.targets
        elif isinstance(each, ast.AnnAssign) and each.value is not None:
            targets.append(each.target)
    return {each.id for each in targets if isinstance(each, ast.Name) and is_private(each.id)}


def of_self(kind: type, *, assigned: bool) -> set[str]:
    """Private attributes of `self`, `cls` and `super()` that a class assigns, or else reads."""
    found = set()
    for each in ast.walk(body(kind)):
        if isinstance(each, ast.Attribute) and is_private(each.attr) and isinstance(each.ctx, ast.Store) == assigned:
            of = each.value.func if isinstance(each.value, ast.Call) else each.value
            if isinstance(of, ast.Name) and of.id in ("self", "cls", "super"):
                found.add(each.attr)
    return found


def defined(kind: type) -> set[str]:
    """Private names that a class has from itself and its parents in longspan."""
    own = [each for each in kind.__mro__ if is_own(each)]
    return {name for each in own for name in (*methods(each), *class_attributes(each), *of_self(each, assigned=True))}


def accepts_calls_of(own: Callable[..., Any], parent: Callable[..., Any]) -> bool:
    """Whether arguments for `parent` fit `own`, all by position or all by name."""
    wanted = [each for each in inspect.signature(parent).parameters.values() if each.kind is not each.VAR_KEYWORD]
    named = [each for each in wanted if each.kind is not each.VAR_POSITIONAL]
    placed = [each for each in named if each.kind is not each.KEYWORD_ONLY]
    only_named = {each.name: None for each in named if each.kind is each.KEYWORD_ONLY}
    signature = inspect.signature(own)
    # `self` comes first in both, unless they are methods of the class.
    first = placed[:1] if placed and placed[0].name == "self" else []
    for arguments, options in (
        ([None] * len(placed), only_named),
        ([None] * len(first), {each.name: None for each in named[len(first) :]}),
    ):
        try:
            signature.bind(*arguments, **options)
        except TypeError:
            continue
        return True
    return False


def problems(kind: type) -> Iterator[str]:
    """Private names of a class that its parents do not have, or have without its knowledge."""
    where, parents = f"{kind.__module__}.{kind.__qualname__}", foreign(kind)
    packages = " and ".join(sorted({release(each.__module__) for each in parents}))
    for name, method in methods(kind).items():
        above = next((each for each in kind.__mro__[1:] if name in vars(each)), None)
        others = [each for each in parents if name in vars(each)]
        if is_marked(method) and above is None:
            yield f"{packages}: no {name}, which {where} overrides"
        elif is_marked(method) and above is not None:
            if not accepts_calls_of(getattr(kind, name), getattr(above, name)):
                yield (
                    f"{release(above.__module__)}: {above.__name__}.{name} is called with "
                    f"{inspect.signature(getattr(above, name))}, which {where}.{name} does not take"
                )
        elif others:
            yield f"{release(others[0].__module__)}: {others[0].__name__}.{name} is overridden by {where}; mark it"
    for name in class_attributes(kind):
        if not any(has(each, name) for each in parents):
            yield f"{packages}: no {name}, which {where} sets; a name of our own belongs outside of the class"
    for name in of_self(kind, assigned=False) - defined(kind):
        if not any(has(each, name) for each in parents):
            yield f"{packages}: no {name}, which {where} reads"
    for name in of_self(kind, assigned=True):
        others = [each for each in parents if has(each, name)]
        if others and not hasattr(others[0], name):
            yield f"{release(others[0].__module__)}: {others[0].__name__} has a {name} of its own, which {where} sets"


@pytest.mark.slow
def test_overridden_private_methods_and_attributes_exist() -> None:
    assert len(classes()) > 100
    found = [problem for kind in classes() for problem in problems(kind)]
    assert not found, "\n".join(found)


class Renamed(Trainer):
    @override
    def _run_era(self) -> None:
        pass

    @override
    def _load_best_model(self, wanted: int) -> None:
        pass

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._remembered = self._forgotten


def test_a_name_that_does_not_exist_is_said_with_its_package_and_version() -> None:
    version = re.escape(release("transformers"))
    assert [bool(re.search(rf"^{version}: ", problem)) for problem in problems(Renamed)] == [True] * 4
    told = "\n".join(problems(Renamed))
    for expected in (
        "no _run_era, which .*Renamed overrides",
        r"Trainer._load_best_model is called with \(self\).*, which .*Renamed._load_best_model does not take",
        "Trainer._save_checkpoint is overridden by .*Renamed; mark it",
        "no _forgotten, which .*Renamed reads",
    ):
        assert re.search(expected, told), told


# Everything else


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT.parent).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def mentioned() -> dict[str, set[str]]:
    """Private attributes of other objects than `self` that the sources read or set, each with its files."""
    found: dict[str, set[str]] = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            name = ""
            if isinstance(node, ast.Attribute):
                of = node.value.func if isinstance(node.value, ast.Call) else node.value
                name = "" if isinstance(of, ast.Name) and of.id in ("self", "cls", "super") else node.attr
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
                constant = node.args[1] if len(node.args) > 1 else None
                name = str(constant.value) if isinstance(constant, ast.Constant) else ""
            if is_private(name):
                found.setdefault(name, set()).add(path)
    return found


def owner(place: str) -> Any:
    module, _, names = place.partition(":")
    found = importlib.import_module(module)
    return functools.reduce(getattr, names.split("."), found) if names else found


@pytest.mark.slow
def test_private_names_that_are_mentioned_are_listed() -> None:
    found = mentioned()
    new = {name: sorted(paths) for name, paths in found.items() if name not in MENTIONED}
    assert not new, f"private names that MENTIONED does not have: {new}"
    assert not sorted(MENTIONED.keys() - found.keys()), "names that nothing mentions any more"


@pytest.mark.parametrize(("name", "places"), MENTIONED.items(), ids=MENTIONED)
def test_private_names_that_are_mentioned_exist(name: str, places: list[str]) -> None:
    for place in places:
        assert has(owner(place), name), f"{release(place.partition(':')[0])}: {place} has no {name}"


#: Packages that are always installed. They document few modules, so every name that is imported of them is checked.
REQUIRED = ("accelerate", "datasets", "huggingface_hub", "llvmlite", "numba", "safetensors", "tokenizers", "torch")


def missing_imports(path: str, tree: ast.Module) -> Iterator[str]:
    """Names that a file imports, of transformers and of packages like it, or private ones, and that do not exist."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.module.startswith("longspan"):
            continue
        names = [alias.name for alias in node.names]
        if node.module.split(".")[0] in (*REQUIRED, "transformers") or any(
            map(is_private, (*node.module.split("."), *names))
        ):
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError:
                yield f"{release(node.module)}: no {node.module}, which {path} imports"
                continue
            for name in names:
                inner = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name}")
                if not hasattr(module, name) and not inner:
                    yield f"{release(node.module)}: {node.module} has no {name}, which {path} imports"


@pytest.mark.slow
def test_names_that_are_imported_exist() -> None:
    missing = [problem for path, tree in trees() for problem in missing_imports(path, tree)]
    assert not missing, "\n".join(missing)


def test_a_missing_import_is_said_with_its_package_and_version() -> None:
    tree = ast.parse("from numba.core.cgutils import absent, pack_array\nfrom transformers.absent import any")
    assert [*missing_imports("ops/simd.py", tree)] == [
        f"{release('numba')}: numba.core.cgutils has no absent, which ops/simd.py imports",
        f"{release('transformers')}: no transformers.absent, which ops/simd.py imports",
    ]
