"""Fastformer: additive attention over words and over clicks, in the sizes of its paper."""

import copy
from typing import TYPE_CHECKING

from torch import Tensor

from longspan.models.recommenders._layered import Layered
from longspan.models.recommenders._parts import AdditivePooling
from longspan.models.recommenders.base import News

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class Fastformer(Layered):
    """Additive attention over the words of a title and over the clicks of a user, each with additive pooling.

    Equations:
        layer: z = norm(x + additive(x)),  norm(z + W_2 gelu(W_1 z + b_1) + b_2), the mixer additive
        pool(x) = Σ_t softmax_t(q·tanh(V x_t + v)) x_t
        item = pool(layers(norm(words)))
        user = pool'(layers'(items clicked));  score = user·item / √dim

    Cost: linear in words and in clicks; with `config.head.user_causal` a click is read in constant time and memory
    Source: Wu et al. 2021, "Fastformer: Additive Attention Can Be All You Need", https://arxiv.org/abs/2108.09084
    Deviations: neither words nor clicks have positions (the authors' Keras code leaves them out too): with learned
        ones in titles, training on clicks stayed at chance. Vectors are divided by the fourth root of dim, as dot
        products of normalised vectors begin far too large for a softmax.
        Sizes are those of the authors' PyTorch code (two layers, 16 heads of width 16, feed-forward networks of width
        256). A user without clicks, and an item without a title, are zero.

    Args:
        config: the model's, with its words and the width of their vectors.
        dim: width of layers and vectors.
        depth: layers over words.
        user_depth: layers over clicks.
        heads: number of heads.
        feed_forward_dim: hidden width of the feed-forward networks.
        dropout: of embeddings, mixers and feed-forward networks.
    """

    shaped = frozenset({"user_causal"})
    word_dim = 300

    def __init__(
        self,
        config: "LongspanConfig",
        *,
        dim: int = 256,
        depth: int = 2,
        user_depth: int = 2,
        heads: int = 16,
        feed_forward_dim: int = 256,
        dropout: float = 0.2,
    ) -> None:
        shape = copy.deepcopy(config)
        shape.dim, shape.depth, shape.head.user_depth, shape.heads = dim, depth, user_depth, heads
        shape.feed_forward_dim, shape.dropout = feed_forward_dim, dropout
        shape.norm, shape.embedding_norm, shape.residual, shape.activation = "post", True, True, "gelu"
        shape.position = "none"
        super().__init__(shape)
        self.title = AdditivePooling(dim, dim)

    def encode_news(self, news: News) -> Tensor:
        pooled: Tensor = self.title(news.title, news.title_mask)[0]
        return pooled * self.dim**-0.25

    def user_vector(self, items: Tensor, outputs: Tensor, user_ids: Tensor) -> Tensor:
        return outputs * self.dim**-0.25
