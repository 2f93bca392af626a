"""Finding mixers by name."""

import sys
import types

import pytest
import torch
from torch import Tensor

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.recurrent import Recurrent


def test_names_are_the_files() -> None:
    assert {"additive", "softmax"} <= set(mixers.names())
    assert mixers.names() == sorted(mixers.names())


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'additive'"):
        mixers.build("aditive", 8)


class Mine(mixers.Mixer):
    """A mixer defined outside the package."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x

    def operations(self, length: int) -> int:
        return 0


def test_a_third_party_mixer_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somewhere")
    vars(module).update(Mine=Mine, Layer=torch.nn.Linear)
    monkeypatch.setitem(sys.modules, "somewhere", module)
    assert mixers.build("somewhere.Mine", 8)(torch.zeros(1, 2, 8)).shape == (1, 2, 8)
    with pytest.raises(UserError, match="expected the mixer 'Yours' in 'somewhere', got none"):
        mixers.load("somewhere.Yours")
    with pytest.raises(UserError, match=r"derived from longspan\.mixers\.base\.Mixer"):
        mixers.load("somewhere.Layer")
    with pytest.raises(UserError, match="allow it with --allow-import nowhere"):
        mixers.load("nowhere.Mine")


def test_describe_reads_the_class() -> None:
    description = mixers.describe("additive")
    assert description.options["interaction"] == "product"
    assert description.causal
    assert description.streaming
    assert description.packing
    assert description.context
    assert not mixers.describe("local").context


def test_aliases_are_mixers_with_options() -> None:
    lstm = mixers.build("lstm", 8, bias=False)
    assert isinstance(lstm, Recurrent)
    assert lstm.cell == "lstm"
    assert mixers.build("gru", 8, cell="sru").cell == "sru"
    assert mixers.build("transformer_xl", 8).causal
    assert not mixers.build("transformer_xl", 8, causal=False).causal
    assert mixers.options("gru")["cell"] == "gru"
    assert set(mixers.aliases()).isdisjoint(mixers.names())
    assert mixers.describe("lstm").alias_of == "recurrent"
    assert mixers.describe("recurrent").aliases == ("gru", "lstm", "sru")
    assert all(alias.options.items() <= mixers.options(name).items() for name, alias in mixers.aliases().items())


def test_messages_name_an_alias_as_it_was_typed() -> None:
    with pytest.raises(UserError, match="did you mean 'fastformer'"):
        mixers.load("fastformr")
    with pytest.raises(UserError, match="mixer 'lstm' has no option 'hidden'"):
        mixers.build("lstm", 8, hidden=4)
    with pytest.raises(UserError, match=r"'lstm' is 'recurrent' by another name: .* dim=5"):
        mixers.build("lstm", 5)
