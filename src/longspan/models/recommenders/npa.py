"""NPA: who the user is decides which words and which clicks count."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from longspan.models.recommenders._parts import AdditivePooling, Convolution, Dense
from longspan.models.recommenders.base import News, Recommender, table, words_alone
from longspan.ops.pooling import PrefixMean, softmax_weights

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class Npa(Recommender):
    """Additive pooling over words and over clicks, by queries that are the user's own (NPA).

    Equations (u is the user's vector):
        c_t = ReLU(W [w_{t-1}; w_t; w_{t+1}] + b)
        item = Σ_t softmax_t(q_w·tanh(V c_t + v)) c_t,  q_w = ReLU(W_w u + b_w)
        user = Σ_j softmax_j(q_n·tanh(V' n_j + v')) n_j,  q_n = ReLU(W_n u + b_n), over the items n clicked
        score = user·item

    An item's vector is another for each user, so what is computed once for each item, and may be kept, is c and
    tanh(V c + v).

    Cost: t·filters·(window·word_dim + query_dim) per item of t words, and (h + m)·t·(filters + query_dim) per user with
        m candidates; streams: a click in constant time
    Source: Wu et al. 2019, "NPA: Neural News Recommendation with Personalized Attention", KDD
    Deviations: users that are not known share the queries ReLU(b). Padding is masked everywhere; a user without clicks
        is zero.

    Args:
        config: the model's, with its words and users.
        filters: width of the convolution, and of all vectors.
        window: words that it sees.
        user_dim: width of the vectors of users.
        query_dim: width of their queries.
        dropout: of words and of the convolution.
    """

    reads = frozenset({"user_ids"})
    personal = True
    needs_users = True
    streams = True
    word_dim = 300

    def __init__(
        self,
        config: "LongspanConfig",
        *,
        filters: int = 400,
        window: int = 3,
        user_dim: int = 50,
        query_dim: int = 200,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.reader = words_alone(config)
        self.dim, self.query_dim = filters, query_dim
        self.words = Convolution(self.reader.dim, filters, window, dropout)
        self.users = table(config.head.users, user_dim)
        self.word_query, self.click_query = Dense(user_dim, query_dim), Dense(user_dim, query_dim)
        self.word_pooling = AdditivePooling(filters, query_dim, asked=True)
        self.click_pooling = AdditivePooling(filters, query_dim, asked=True)

    def encode_news(self, news: News) -> Tensor:
        """Return c of each word, followed by tanh(V c + v) and by 1, or 0 at padding: (n, t, filters + query_dim +
        1)."""
        seen: Tensor = self.words(news.title, news.title_mask)
        hidden = torch.tanh(self.word_pooling.hidden(seen))
        return torch.cat((seen, hidden, news.title_mask.unsqueeze(-1).to(seen.dtype)), -1)

    def select(self, vectors: Tensor, indices: Tensor, user_ids: Tensor) -> Tensor:
        rows, (users, items), words = indices.flatten(), indices.shape, vectors.shape[1]
        seen, hidden, there = vectors.split((self.dim, self.query_dim, 1), -1)
        asked = self.word_query(self.users(user_ids)).relu().unsqueeze(-1)
        logits = (hidden[rows].view(users, items * words, self.query_dim) @ asked).view(users * items, words, 1)
        weights = softmax_weights(logits, there[rows].squeeze(-1) > 0).squeeze(-1)
        # The mean without a copy of the words for each user.
        places = rows.unsqueeze(1) * words + torch.arange(words, device=rows.device)
        pooled = embedding_bag(places, seen.flatten(0, 1), mode="sum", per_sample_weights=weights.to(seen.dtype))
        return pooled.view(users, items, self.dim)

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        pooled, weights = self.click_pooling(clicked, mask, self._click_queries(user_ids))
        return pooled, weights

    def empty_state(self, user_ids: Tensor, dtype: torch.dtype) -> PrefixMean:
        return self.click_pooling.empty_state(len(user_ids), dtype, user_ids.device)

    def advance(self, clicked: Tensor, mask: Tensor, state: PrefixMean, user_ids: Tensor) -> tuple[Tensor, PrefixMean]:
        return self.click_pooling.advance(clicked, mask, state, self._click_queries(user_ids))

    def _click_queries(self, user_ids: Tensor) -> Tensor:
        asked: Tensor = self.click_query(self.users(user_ids)).relu()
        return asked
