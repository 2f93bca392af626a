"""Shared part of recommenders with layers of any mixers."""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from longspan.models.backbone import known_to
from longspan.models.layers import build_backbone
from longspan.models.parts.positions import Positions
from longspan.models.recommenders._parts import AdditivePooling
from longspan.models.recommenders.base import ClickState, Recommender, renewed
from longspan.ops.packing import zero_padding
from longspan.ops.pooling import PrefixMean

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class LayeredState(NamedTuple):
    """The states of the layers over clicks, and of the mean over them."""

    layers: tuple[object, ...]
    pooled: PrefixMean


class Layered(Recommender):
    """Layers over clicks with additive pooling: Σ_j softmax_j(q·tanh(V y_j + v)) [n_j; y_j], y = layers(n + positions).

    The layers are `user_depth` ones of `user_mixers`, settings of the head; positions count back from the newest click.
    """

    def __init__(self, config: "LongspanConfig") -> None:
        super().__init__()
        assert config.mixers is not None
        user_mixers = config.head.user_mixers or config.mixers
        self.reader = _part(config, config.mixers, user_mixers)
        over_clicks = _part(config, user_mixers, config.mixers)
        self.causal = over_clicks.causal = config.head.user_causal
        self.dim = config.dim
        self.positions = Positions(config.head.user_position, self.dim, max_positions=config.max_positions)
        self.clicks = build_backbone(over_clicks, config.head.user_depth, None)
        self.streams = self.causal or not self.clicks.depth
        self.pooling = AdditivePooling(self.dim, self.dim)

    @abstractmethod
    def user_vector(self, items: Tensor, outputs: Tensor, user_ids: Tensor) -> Tensor:
        """Return the vectors of users from the means over the items clicked and over the layers' outputs for them."""

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        if not clicked.shape[1]:
            nothing = torch.zeros_like(clicked).sum(1)
            return self.user_vector(nothing, nothing, user_ids), torch.zeros_like(clicked[..., 0])
        # From the newest back; far ones share the last number of a table.
        numbers = (mask.long().flip(1).cumsum(1).flip(1) - 1).clamp_min(0)
        if self.positions.name == "learned":
            numbers = numbers.clamp_max(self.positions.max_positions - 1)
        y = self.clicks(zero_padding(self.positions(clicked, numbers), mask), mask)
        pooled, weights = self.pooling(y, mask, values=torch.cat((clicked, y), -1))
        items, outputs = pooled.chunk(2, 1)
        return self.user_vector(items, outputs, user_ids), weights

    def empty_state(self, user_ids: Tensor, dtype: torch.dtype) -> LayeredState:
        layers = self.clicks.init_states(len(user_ids), dtype, user_ids.device)
        return LayeredState(layers, self._no_clicks(user_ids, dtype))

    def advance(
        self, clicked: Tensor, mask: Tensor, state: LayeredState, user_ids: Tensor
    ) -> tuple[Tensor, LayeredState]:
        y, layers = self.clicks.step(clicked, state.layers, mask)
        pooled, after = self.pooling.advance(y, mask, state.pooled, values=torch.cat((clicked, y), -1))
        items, outputs = pooled.chunk(2, 1)
        return self.user_vector(items, outputs, user_ids), LayeredState(layers, after)

    def reset(self, state: ClickState, rows: Tensor) -> ClickState:
        # The states of some mixers grow, and only they know how to reset them.
        layers = tuple(
            block.reset(each, rows) for block, each in zip(self.clicks.layers, state.reading.layers, strict=True)
        )
        nothing = self._no_clicks(rows, self.pooling.hidden.weight.dtype)
        pooled = renewed(rows, state.reading.pooled, nothing)
        return ClickState(state.user_ids.masked_fill(rows, 0), LayeredState(layers, pooled))

    def _no_clicks(self, rows: Tensor, dtype: torch.dtype) -> PrefixMean:
        return self.pooling.empty_state(len(rows), dtype, rows.device, width=2 * self.dim)


def _part(config: "LongspanConfig", own: Sequence[str], other: Sequence[str]) -> "LongspanConfig":
    """Return the configuration of layers of the mixers `own`, without what is meant for those of `other` alone."""
    part = copy.deepcopy(config)
    assert part.mixer_options is not None
    part.mixers = list(own)
    part.mixer_options = {
        name: chosen for name, chosen in part.mixer_options.items() if name in own or name not in other
    }
    part.cross_mixers = None
    elsewhere = known_to(other, {"forget": part.forget, "rotary": part.rotary})
    here = known_to(own, elsewhere)
    for setting in elsewhere.keys() - here.keys():
        setattr(part, setting, getattr(type(config), setting))
    return part
