"""Any mixers over words and over clicks, in linear time and click by click."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from longspan.models.recommenders._layered import Layered
from longspan.models.recommenders._parts import AdditivePooling, Dense
from longspan.models.recommenders.base import News, Recommender, UserTable, table
from longspan.ops.dropout import Dropout

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class ItemMap(Dense):
    """A linear map whose outputs begin with a square of about √dim, so that the first dot products are about 1."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.weight, self.in_features**-0.25)


class Longspan(Layered):
    """Layers of any mixers over the words of an item and over the clicks of a user, each with additive pooling.

    Equations:
        pool(x) = Σ_t softmax_t(q·tanh(V x_t + v)) x_t
        item = W_n [pool(layers(words of the title)) + pool'(layers(words of the abstract))
                    + e_category + e_subcategory + W_e mean(vectors of entities)] + b_n, of the parts there are
        y = layers'(n + positions) of the items n that were clicked,  α_j = softmax_j(q_u·tanh(V_u y_j + v_u))
        user = Σ_j α_j n_j + W_u Σ_j α_j y_j + b_u + e_user;  score = user·item

    The layers over words are `config.depth` layers of `config.mixers`; those over clicks, by the
    settings of the head, `user_depth` of `user_mixers`. Positions over clicks (`user_position`) count back from the
    newest. A new model finds items that are like those clicked: of user and item as two maps that both begin near zero,
    neither learns.

    Cost: that of the mixers, linear in the clicks with linear ones. With `config.head.user_causal`, or without layers
        over clicks, a click is read in constant time and memory (if the mixers' states are bounded).
    Source: this project's. Additive pooling over words and clicks is that of NRMS (Wu et al. 2019).
    Deviations: a user without clicks is b_u + e_user, which is learned; an item of which there is nothing is zero.

    Args:
        config: the model's.
        user_embedding: whether there is a vector e for each of `config.head.users`.
        hidden: probability that a user is unknown in training, if so.
    """

    reads = frozenset({"abstract_ids", "category_ids", "subcategory_ids", "entity_ids", "user_ids"})
    shaped = frozenset(Recommender.SETTINGS)

    def __init__(self, config: "LongspanConfig", *, user_embedding: bool = False, hidden: float = 0.5) -> None:
        super().__init__(config)
        dim = config.dim
        self.title = AdditivePooling(dim, dim)
        self.abstract = AdditivePooling(dim, dim) if config.head.abstracts else None
        self.category = table(config.head.categories, dim) if config.head.categories else None
        self.subcategory = table(config.head.subcategories, dim) if config.head.subcategories else None
        self.entities = table(config.head.entities, config.head.entity_dim) if config.head.entities else None
        self.entity = nn.Linear(config.head.entity_dim, dim, bias=False) if config.head.entities else None
        self.item = ItemMap(dim, dim)
        self.user = nn.Linear(dim, dim)
        self.users = UserTable(config.head.users, dim, hidden) if user_embedding and config.head.users else None
        self.dropout = Dropout(config.dropout)

    @property
    def entity_vectors(self) -> nn.Embedding | None:
        return self.entities

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
        mapped: Tensor = self.item(self.dropout(vectors))
        return mapped.masked_fill(~there.unsqueeze(1), 0)

    def user_vector(self, items: Tensor, outputs: Tensor, user_ids: Tensor) -> Tensor:
        user: Tensor = items + self.user(self.dropout(outputs))
        return user if self.users is None else user + self.users(user_ids)
