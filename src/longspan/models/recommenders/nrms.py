"""NRMS: self-attention over words and over clicks."""

from typing import TYPE_CHECKING

from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.models.recommenders._parts import AdditivePooling, Dense
from longspan.models.recommenders.base import News, Recommender, words_alone
from longspan.ops.attention import attention
from longspan.ops.dropout import Dropout
from longspan.ops.heads import merge_heads, split_heads
from longspan.ops.packing import zero_padding

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√e)V of each of `heads` heads of width `head_dim`, concatenated, without biases."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (Dense(dim, heads * head_dim, bias=False) for _ in range(3))

    def forward(self, x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t e"]:
        query, key, value = (split_heads(each(x), self.heads) for each in (self.query, self.key, self.value))
        return zero_padding(merge_heads(attention(query, key, value, mask)), mask)


class Nrms(Recommender):
    """Self-attention over the words of a title and over the clicks of a user, each with additive pooling (NRMS).

    Equations (per head, of width e; words and clicks have weights of their own):
        h_t = Σ_j softmax_j(Q x_t · K x_j / √e) V x_j,  all heads side by side
        pooled = Σ_t softmax_t(q·tanh(V' h_t + v')) h_t
        item: pooled over its words; user: pooled over the items clicked; score = user·item

    Cost: h²·dim per user
    Source: Wu et al. 2019, "Neural News Recommendation with Multi-Head Self-Attention", EMNLP-IJCNLP
    Deviations: the paper's scores are x_tᵀ Q_k x_j; Q_k = QᵀK/√e of rank e here, as in the authors' code. Padding is
        masked in attention and pooling, which that code does not do; a user without clicks is zero.

    Args:
        config: the model's, with its words and the width of their vectors.
        heads: number of heads.
        head_dim: width of a head; vectors have heads * head_dim.
        query_dim: width of the queries of additive pooling.
        dropout: of words and of the outputs of self-attention.
    """

    word_dim = 300

    def __init__(
        self,
        config: "LongspanConfig",
        *,
        heads: int = 20,
        head_dim: int = 20,
        query_dim: int = 200,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.reader = words_alone(config)
        self.dim = heads * head_dim
        self.words = SelfAttention(self.reader.dim, heads, head_dim)
        self.word_pooling = AdditivePooling(self.dim, query_dim)
        self.clicks = SelfAttention(self.dim, heads, head_dim)
        self.click_pooling = AdditivePooling(self.dim, query_dim)
        self.dropout = Dropout(dropout)

    def encode_news(self, news: News) -> Tensor:
        words = zero_padding(self.dropout(news.title), news.title_mask)
        vectors: Tensor = self.word_pooling(self.dropout(self.words(words, news.title_mask)), news.title_mask)[0]
        return vectors

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        pooled, weights = self.click_pooling(self.dropout(self.clicks(clicked, mask)), mask)
        return pooled, weights
