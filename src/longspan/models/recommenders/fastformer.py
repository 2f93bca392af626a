"""Fastformer: additive attention over words and over clicks, in the sizes of its paper."""

import copy
from typing import TYPE_CHECKING

from longspan.models.recommenders.longspan import Longspan

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class Fastformer(Longspan):
    """Additive attention over the words of a title and over the clicks of a user, each with additive pooling.

    Equations: those of the recommender longspan, of titles alone, with layers of the mixer additive (`longspan show
        additive`), each y = norm(x + mixer(x)) and norm(y + feed_forward(y)); words have learned positions.

    Cost: linear in words and in clicks
    Source: Wu et al. 2021, "Fastformer: Additive Attention Can Be All You Need", https://arxiv.org/abs/2108.09084
    Deviations: clicks have no positions, so that histories of any length are read, and `config.user_causal` reads them
        one by one. Vectors of items and users go through a linear map, without which the first dot products, of
        vectors with norms of 16, leave nothing to learn from. Sizes are those of the authors' code (two layers, 16
        heads of width 16, a feed-forward network of width 256).

    Args:
        config: the model's; it says what words there are and how wide their vectors.
        dim: width of layers and vectors.
        depth: layers over words.
        user_depth: layers over clicks.
        heads: number of heads.
        feed_forward_dim: hidden width of the feed-forward networks.
        dropout: of embeddings, mixers and feed-forward networks.
    """

    reads = frozenset[str]()
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
        shape.dim, shape.depth, shape.user_depth, shape.heads = dim, depth, user_depth, heads
        shape.feed_forward_dim, shape.dropout = feed_forward_dim, dropout
        shape.norm, shape.embedding_norm, shape.residual, shape.activation = "post", True, True, "gelu"
        shape.position, shape.position_combine = "learned", "add"
        shape.abstracts, shape.categories, shape.subcategories, shape.entities = False, 0, 0, 0
        super().__init__(shape)
