"""NAML: attention over the views of an item - its title, abstract and categories."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.models.recommenders._parts import AdditivePooling, Dense, Text
from longspan.models.recommenders.base import News, Recommender, table, words_alone
from longspan.ops.pooling import PrefixMean

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class Category(nn.Module):
    """ReLU(W e + b) of the vector e of a category."""

    def __init__(self, count: int, width: int, dim: int) -> None:
        super().__init__()
        self.vectors = table(count, width)
        self.dense = Dense(width, dim)

    def forward(self, ids: Tensor) -> Tensor:
        view: Tensor = self.dense(self.vectors(ids)).relu()
        return view


class Naml(Recommender):
    """Additive pooling over the views of an item, each from an encoder of its own, and over clicks (NAML).

    Equations:
        words: c_t = ReLU(W [w_{t-1}; w_t; w_{t+1}] + b),  text = Σ_t softmax_t(q·tanh(V c_t + v)) c_t
        category: ReLU(W_c e_c + b_c), subcategory likewise
        item = Σ_i softmax_i(q_v·tanh(V_v r_i + v_v)) r_i over the views r: title, abstract, category, subcategory
        user = Σ_j softmax_j(q_u·tanh(V_u n_j + v_u)) n_j over the items clicked; score = user·item

    Cost: h·dim·query_dim per user; streams: the mean over clicks is updated in constant time
    Source: Wu et al. 2019, "Neural News Recommendation with Attentive Multi-View Learning", IJCAI
    Deviations: views that the data do not have are left out, and those that an item does not have are masked. Padding
        is masked everywhere; a user without clicks is zero. The body of the paper is the abstract here.

    Args:
        config: the model's, with its words and categories.
        filters: width of the convolutions, and of all vectors.
        window: words that a convolution sees.
        category_dim: width of the vectors of categories.
        query_dim: width of the queries of additive pooling.
        dropout: of words and of the convolutions.
    """

    reads = frozenset({"abstract_ids", "category_ids", "subcategory_ids"})
    streams = True
    word_dim = 300

    def __init__(
        self,
        config: "LongspanConfig",
        *,
        filters: int = 400,
        window: int = 3,
        category_dim: int = 100,
        query_dim: int = 200,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.reader = words_alone(config)
        self.dim = filters

        def text() -> Text:
            return Text(self.reader.dim, filters=filters, window=window, query_dim=query_dim, dropout=dropout)

        self.title = text()
        self.abstract = text() if config.head.abstracts else None
        kinds, finer = config.head.categories, config.head.subcategories
        self.category = Category(kinds, category_dim, filters) if kinds else None
        self.subcategory = Category(finer, category_dim, filters) if finer else None
        self.view_pooling = AdditivePooling(filters, query_dim)
        self.click_pooling = AdditivePooling(filters, query_dim)

    def encode_news(self, news: News) -> Tensor:
        views, there = [self.title(news.title, news.title_mask)], [news.title_mask.any(1)]
        if self.abstract is not None:
            assert news.abstract is not None
            assert news.abstract_mask is not None
            views.append(self.abstract(news.abstract, news.abstract_mask))
            there.append(news.abstract_mask.any(1))
        for view, ids in ((self.category, news.category_ids), (self.subcategory, news.subcategory_ids)):
            if view is not None:
                assert ids is not None
                views.append(view(ids))
                there.append(ids > 0)
        vectors: Tensor = self.view_pooling(torch.stack(views, 1), torch.stack(there, 1))[0]
        return vectors

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        pooled, weights = self.click_pooling(clicked, mask)
        return pooled, weights

    def empty_state(self, user_ids: Tensor, dtype: torch.dtype) -> PrefixMean:
        return self.click_pooling.empty_state(len(user_ids), dtype, user_ids.device)

    def advance(self, clicked: Tensor, mask: Tensor, state: PrefixMean, user_ids: Tensor) -> tuple[Tensor, PrefixMean]:
        return self.click_pooling.advance(clicked, mask, state)
