"""Base class of recommenders: the one interface that the model, training and tools rely on.

A recommender is a `Recommender` that implements

    encode_news(news)                           vectors of items
    encode_user(clicked, mask, user_ids)        vectors of users from those of what they clicked

and, where a click can be read after the other,

    streams, empty_state(user_ids, dtype), advance(clicked, mask, state, user_ids)

The score of a candidate is the dot product of both vectors. A separate
`LongspanModel` of the model reads words: `reader` is its configuration.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from longspan.errors import UserError

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


@dataclass
class News:
    """Items to be recommended, of which `title` is there, and the others where the data have them.

    Attributes:
        title: (n, t, w), the outputs of the model's reader for each word.
        title_mask: (n, t), True at words.
        abstract: (n, s, w), the same of abstracts.
        abstract_mask: (n, s).
        category_ids: (n,), 0 for none or an unknown one, as in the next two.
        subcategory_ids: (n,).
        entity_ids: (n, e).
    """

    title: Tensor
    title_mask: Tensor
    abstract: Tensor | None = None
    abstract_mask: Tensor | None = None
    category_ids: Tensor | None = None
    subcategory_ids: Tensor | None = None
    entity_ids: Tensor | None = None


class ClickState(NamedTuple):
    """A user after the clicks so far: `user_ids` (b,) and what the recommender remembers of the clicks."""

    user_ids: Tensor
    reading: Any


class Recommender(nn.Module, ABC):
    """Vectors of items and users, whose dot products rank the items for the users.

    The constructor takes the model's configuration; its keyword-only arguments, all with defaults, are the options.

    Attributes:
        reads: what it reads of items and users besides titles: "abstract_ids", "category_ids", "subcategory_ids",
            "entity_ids" and "user_ids", of those that the data have.
        personal: whether an item's vector depends on the user: what `encode_news` returns is then (n, t, k), for
            `select` to make vectors of.
        needs_users: whether it is nothing without known users.
        shaped: the settings of layers in a `LongspanConfig` that it heeds, of SETTINGS.
        streams: whether it reads one click after the other.
        word_dim: the width of the word vectors it was published with, or None.
        reader: the configuration of the `LongspanModel` that reads words.
        dim: width of the vectors.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = (
        *("mixers", "user_mixers", "user_depth", "user_causal", "user_position"),
        *("short_convolution", "forget", "rotary", "share_layers"),
    )
    reads: ClassVar[frozenset[str]] = frozenset()
    personal: ClassVar[bool] = False
    needs_users: ClassVar[bool] = False
    shaped: ClassVar[frozenset[str]] = frozenset()
    streams: bool = False
    word_dim: ClassVar[int | None] = None

    reader: "LongspanConfig"
    dim: int

    @property
    def entity_vectors(self) -> nn.Embedding | None:
        """The vectors of entities, row 0 for none, if it has any."""
        return None

    @abstractmethod
    def encode_news(self, news: News) -> Tensor:
        """Return the vectors of items, (n, dim), zeros for one of which there is nothing; see also `personal`."""

    def select(self, vectors: Tensor, indices: Int[Tensor, "b m"], user_ids: Int[Tensor, " b"]) -> Tensor:
        """Return the vectors (b, m, dim) of these rows of what `encode_news` returned, as each user sees them."""
        return vectors[indices]

    @abstractmethod
    def encode_user(
        self, clicked: Float[Tensor, "b h d"], mask: Bool[Tensor, "b h"], user_ids: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b h"] | None]:
        """Return the vectors of users, and how much each click weighs in the last mean, if there is one.

        `clicked` are the vectors of what they clicked, oldest first, zeros where `mask` is False.
        """

    def empty_state(self, user_ids: Int[Tensor, " b"], dtype: torch.dtype) -> Any:
        """State before the first click: tensors with the batch first."""
        raise NotImplementedError(f"{type(self).__name__} declares that it streams, and must implement empty_state")

    def advance(
        self, clicked: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"], state: Any, user_ids: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b d"], Any]:
        """Return the vectors of users after `n` more clicks, and what it remembers then; n >= 1."""
        raise NotImplementedError(f"{type(self).__name__} declares that it streams, and must implement advance")

    def init_state(self, user_ids: Int[Tensor, " b"], dtype: torch.dtype) -> ClickState:
        """Return the state of users before the first click. Raises UserError for a recommender that has none."""
        if not self.streams:
            raise UserError(
                f"expected a recommender that reads one click after the other, got {self.name}, whose clicks see each "
                "other; encode whole histories, or choose lstur, naml, npa, or longspan with user_causal=True."
            )
        return ClickState(user_ids, self.empty_state(user_ids, dtype))

    def reset(self, state: ClickState, rows: Bool[Tensor, " b"]) -> ClickState:
        """Return `state` with the rows where `rows` is True as those of an unknown user before the first click."""
        user_ids = state.user_ids.masked_fill(rows, 0)
        fresh = self.empty_state(torch.zeros_like(user_ids), next(self.parameters()).dtype)
        return ClickState(user_ids, renewed(rows, state.reading, fresh))

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__.lower()

    @classmethod
    def check(cls, config: "LongspanConfig") -> None:
        """Raise UserError for settings of layers that it does not have, or for users that are not there."""
        name = cls.__name__.lower()
        for setting in cls.SETTINGS:
            owner = config.head if hasattr(config.head, setting) else config
            value = getattr(owner, setting)
            unset = ["additive"] if setting == "mixers" else getattr(type(owner), setting)
            if setting not in cls.shaped and value != unset:
                raise UserError(
                    f"expected model.{setting} with layers that it shapes, got {value} with {name}, whose layers are "
                    "its own; leave it out, or choose the recommender longspan."
                )
        if cls.needs_users and not config.head.users:
            raise UserError(
                f"expected known users for {name}, which learns a vector for each, got users=0; set how many there "
                "are, or choose another recommender."
            )


def words_alone(config: "LongspanConfig") -> "LongspanConfig":
    """Return the configuration of a reader that gives word vectors as they are, or what a pretrained encoder says."""
    reader = copy.deepcopy(config)
    assert reader.embedding_dim is not None
    reader.dim, reader.depth, reader.mixers, reader.mixer_options = reader.embedding_dim, 0, ["additive"], {}
    reader.position, reader.norm, reader.embedding_norm, reader.dropout = "none", "none", False, 0.0
    reader.cross_mixers = None
    return reader


def renewed(rows: Bool[Tensor, " b"], old: Any, new: Any) -> Any:
    """Return the tensors of the state `old`, with those of `new` where `rows` is True."""

    def chosen(before: Tensor, after: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (before.ndim - 1)), after.to(before), before)

    return tree_map(chosen, old, new)


def table(count: int, dim: int) -> nn.Embedding:
    """Return vectors of things numbered from 1; 0 is an unknown one, whose vector is zero."""
    return nn.Embedding(count + 1, dim, padding_idx=0)


class UserTable(nn.Module):
    """A vector for each known user, zeros for others; in training, users are unknown with a probability of `hidden`.

    So that the rest of a model learns to do without (An et al. 2019).
    """

    def __init__(self, users: int, dim: int, hidden: float) -> None:
        super().__init__()
        if not 0 <= hidden <= 1:
            raise UserError(f"expected the share of users to hide from 0 to 1, got {hidden}; choose another.")
        self.vectors = table(users, dim)
        self.hidden = hidden

    def forward(self, user_ids: Int[Tensor, " b"]) -> Float[Tensor, "b d"]:
        if self.training and self.hidden:
            user_ids = user_ids * (torch.rand(user_ids.shape, device=user_ids.device) >= self.hidden)
        vectors: Tensor = self.vectors(user_ids)
        return vectors
