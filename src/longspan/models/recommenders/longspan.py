"""Any mixers over words and over clicks, in linear time and click by click."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from longspan.models.backbone import known_to
from longspan.models.model import build_backbone
from longspan.models.positions import Positions
from longspan.models.recommenders._parts import AdditivePooling
from longspan.models.recommenders.base import ClickState, News, Recommender, UserTable, renewed, table
from longspan.ops.dropout import Dropout
from longspan.ops.packing import zero_padding
from longspan.ops.pooling import PrefixMean

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class LayeredState(NamedTuple):
    """The states of the layers over clicks, and of the mean over their outputs."""

    layers: tuple[object, ...]
    pooled: PrefixMean


class Longspan(Recommender):
    """Layers of any mixers over the words of an item and over the clicks of a user, each with additive pooling.

    Equations:
        pool(x) = Σ_t softmax_t(q·tanh(V x_t + v)) x_t
        item = W_n [pool(layers(words of the title)) + pool'(layers(words of the abstract))
                    + e_category + e_subcategory + W_e mean(vectors of entities)] + b_n, of the parts there are
        user = W_u pool''(layers'(items clicked + positions)) + b_u + e_user;  score = user·item

    The layers over words are `config.depth` layers of `config.mixers`; those over clicks are `config.user_depth` of
    `config.user_mixers`. Positions over clicks (`config.user_position`) count back from the newest.

    Cost: that of the mixers, linear in the clicks with linear ones; with `config.user_causal` a click is read in
        constant time and memory (if the mixers' states are bounded), and without layers over clicks too
    Source: this project's. Additive pooling over words and clicks is that of NRMS (Wu et al. 2019).
    Deviations: a user without clicks is b_u + e_user, which is learned; an item of which there is nothing is zero.

    Args:
        config: the model's.
        user_embedding: whether there is a vector e for each of `config.users`.
        hidden: probability that a user is unknown in training, if so.
    """

    reads = frozenset({"abstract_ids", "category_ids", "subcategory_ids", "entity_ids", "user_ids"})
    shaped = frozenset(Recommender.SETTINGS)

    def __init__(self, config: "LongspanConfig", *, user_embedding: bool = False, hidden: float = 0.5) -> None:
        super().__init__()
        assert config.mixers is not None
        user_mixers = config.user_mixers or config.mixers
        self.reader = _part(config, config.mixers, user_mixers)
        over_clicks = _part(config, user_mixers, config.mixers)
        over_clicks.causal = config.user_causal
        dim = self.dim = config.dim
        self.title = AdditivePooling(dim, dim)
        self.abstract = AdditivePooling(dim, dim) if config.abstracts else None
        self.category = table(config.categories, dim) if config.categories else None
        self.subcategory = table(config.subcategories, dim) if config.subcategories else None
        self.entities = table(config.entities, config.entity_dim) if config.entities else None
        self.entity = nn.Linear(config.entity_dim, dim, bias=False) if config.entities else None
        self.news = nn.Linear(dim, dim)
        self.positions = Positions(config.user_position, dim, max_positions=config.max_positions)
        self.clicks = build_backbone(over_clicks, config.user_depth, None)
        self.causal = config.user_causal
        self.pooling = AdditivePooling(dim, dim)
        self.dropout = Dropout(config.dropout)
        self.user = nn.Linear(dim, dim)
        self.users = UserTable(config.users, dim, hidden) if user_embedding and config.users else None

    def encode_news(self, news: News) -> Tensor:
        vectors, there = self.title(news.title, news.title_mask)[0], news.title_mask.any(1)
        if self.abstract is not None:
            assert news.abstract is not None
            assert news.abstract_mask is not None
            vectors = vectors + self.abstract(news.abstract, news.abstract_mask)[0]
            there = there | news.abstract_mask.any(1)
        for each, ids in ((self.category, news.category_ids), (self.subcategory, news.subcategory_ids)):
            if each is not None:
                assert ids is not None
                vectors, there = vectors + each(ids), there | (ids > 0)
        if self.entities is not None:
            assert self.entity is not None
            assert news.entity_ids is not None
            known = news.entity_ids > 0
            mean = self.entities(news.entity_ids).sum(1) / known.sum(1, keepdim=True).clamp_min(1)
            vectors, there = vectors + self.entity(mean), there | known.any(1)
        projected: Tensor = self.news(self.dropout(vectors))
        return projected.masked_fill(~there.unsqueeze(1), 0)

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        if not clicked.shape[1]:
            return self._user(torch.zeros_like(clicked).sum(1), user_ids), torch.zeros_like(clicked[..., 0])
        # From the newest back; far ones share the last number of a table.
        numbers = (mask.long().flip(1).cumsum(1).flip(1) - 1).clamp_min(0)
        if self.positions.name == "learned":
            numbers = numbers.clamp_max(self.positions.max_positions - 1)
        x = zero_padding(self.positions(clicked, numbers), mask)
        pooled, weights = self.pooling(self.clicks(x, mask), mask)
        return self._user(pooled, user_ids), weights

    @property
    def streams(self) -> bool:
        return self.causal or not self.clicks.depth

    def empty_state(self, user_ids: Tensor, dtype: torch.dtype) -> LayeredState:
        layers = self.clicks.init_states(len(user_ids), dtype, user_ids.device)
        return LayeredState(layers, self.pooling.empty_state(len(user_ids), dtype, user_ids.device))

    def advance(
        self, clicked: Tensor, mask: Tensor, state: LayeredState, user_ids: Tensor
    ) -> tuple[Tensor, LayeredState]:
        x, layers = self.clicks.step(clicked, state.layers, mask)
        pooled, after = self.pooling.advance(x, mask, state.pooled)
        return self._user(pooled, user_ids), LayeredState(layers, after)

    def reset(self, state: ClickState, rows: Tensor) -> ClickState:
        # The states of some mixers grow, and only they know how to begin anew.
        layers = tuple(
            block.reset(each, rows) for block, each in zip(self.clicks.layers, state.reading.layers, strict=True)
        )
        nothing = self.pooling.empty_state(len(rows), self.user.weight.dtype, rows.device)
        pooled = renewed(rows, state.reading.pooled, nothing)
        return ClickState(state.user_ids.masked_fill(rows, 0), LayeredState(layers, pooled))

    def _user(self, pooled: Tensor, user_ids: Tensor) -> Tensor:
        user: Tensor = self.user(self.dropout(pooled))
        return user if self.users is None else user + self.users(user_ids)


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
