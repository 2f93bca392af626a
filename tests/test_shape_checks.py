"""What the suite checks in every call of an op or a mixer."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jaxtyping
import pytest
import shape_checks
import torch
from beartype.roar import BeartypeCallHintViolation

from longspan.ops import heads

CODE = """
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


def total(x: Float[Tensor, "a b"], y: Float[Tensor, "b c"]) -> Float[Tensor, "a c"]:
    return x if y.shape[1] == 7 else x @ y


def first(x: Float[Tensor, "a"], *, n: int) -> Float[Tensor, "{n}"]:
    return x[: abs(n)]


def row(x: Float[Tensor, "a b"], at: int) -> Float[Tensor, "b"]:
    return x[at] if at >= 0 else x


def outer(x: Tensor) -> int:
    def inner(y: Float[Tensor, "a"]) -> int:
        return y.ndim

    return inner(x)


def pairs(x: Float[Tensor, "a b"], y: Float[Tensor, "a b"]) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(x, y)


@dataclass(frozen=True)
class Sized:
    x: Float[Tensor, "a"]
    y: Float[Tensor, "a"] | None = None

    @classmethod
    def made(cls, x: Tensor) -> "Sized":
        return cls(x)
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder: Path = tmp_path_factory.mktemp("code")
    (folder / "annotated_code.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        shape_checks.install(["annotated_code"])
        return importlib.import_module("annotated_code")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def test_what_fits_passes(code: ModuleType) -> None:
    assert code.total(ones(2, 3), ones(3, 4)).shape == (2, 4)
    # Names are bound anew in every call.
    assert code.total(ones(5, 6), y=ones(6, 1)).shape == (5, 1)
    assert len(code.first(ones(5), n=3)) == 3
    assert code.outer(ones(2)) == 1
    assert len(list(code.pairs(ones(2, 3), ones(2, 3)))) == 2
    assert len(code.Sized(ones(2)).x) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda code: code.total(ones(2, 3), ones(4, 3)),
        lambda code: code.total(ones(2, 3), ones(3)),
        lambda code: code.total(ones(2, 3), torch.ones(3, 4, dtype=torch.long)),
        # What is returned.
        lambda code: code.total(ones(2, 3), ones(3, 7)),
        lambda code: code.first(ones(5), n=-3),
        lambda code: code.first(ones(5), n=2.0),
        lambda code: code.outer(torch.ones(())),
        lambda code: code.pairs(ones(2, 3), ones(2, 4)),
        lambda code: code.Sized(ones(2, 3)),
        lambda code: code.Sized(ones(2), ones(3)),
        lambda code: code.Sized.made(3),
    ],
)
def test_what_does_not_is_an_error(call: Callable[[ModuleType], object], code: ModuleType) -> None:
    with pytest.raises((BeartypeCallHintViolation, jaxtyping.TypeCheckError)):
        call(code)


def test_other_results_of_the_same_sizes_are_checked(code: ModuleType) -> None:
    for _ in range(2):
        assert code.row(ones(2, 3), 1).shape == (3,)
        with pytest.raises((BeartypeCallHintViolation, jaxtyping.TypeCheckError)):
            code.row(ones(2, 3), -1)


def test_checks_can_be_off(code: ModuleType, no_shape_checks: None) -> None:
    assert len(code.first(ones(5), n=-3)) == 3
    assert code.Sized(3).x == 3


def test_the_library_is_checked() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        heads.split_heads(ones(2, 3), 1)
