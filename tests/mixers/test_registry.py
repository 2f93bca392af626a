"""Finding mixers by name."""

import sys
import types

import pytest
import torch

from longspan import mixers
from longspan.errors import UserError


def test_names_are_the_files() -> None:
    assert {"additive", "softmax"} <= set(mixers.names())
    assert mixers.names() == sorted(mixers.names())


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'additive'"):
        mixers.build("aditive", 8)


def test_a_third_party_mixer_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somewhere")
    mine = type("Mine", (torch.nn.Linear,), {"__init__": lambda self, dim: torch.nn.Linear.__init__(self, dim, dim)})
    vars(module)["Mine"] = mine
    monkeypatch.setitem(sys.modules, "somewhere", module)
    assert mixers.build("somewhere.Mine", 8)(torch.zeros(1, 2, 8)).shape == (1, 2, 8)
    with pytest.raises(UserError, match="has no 'Yours'"):
        mixers.load("somewhere.Yours")
    with pytest.raises(UserError, match="has not been imported"):
        mixers.load("nowhere.Mine")


def test_describe_reads_the_class() -> None:
    description = mixers.describe("additive")
    assert description.options["interaction"] == "product"
    assert description.causal
    assert description.streaming
    assert description.packing
    assert description.cross
    assert not mixers.describe("local").cross
