"""A model that recommends items: which of several candidates a user clicks, after all they clicked before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple
from typing_extensions import override

from longspan.errors import UserError
from longspan.machine.imports import named_in
from longspan.models import recommenders
from longspan.models.config import LongspanConfig
from longspan.models.model import LongspanModel, LongspanPreTrainedModel, check_attentions
from longspan.models.parts.losses import IGNORED
from longspan.models.parts.positions import NAMES as POSITIONS
from longspan.models.parts.ranking import LOSSES, count_items, ranking_loss
from longspan.models.recommenders._parts import Published
from longspan.models.recommenders.base import News
from longspan.models.settings import DEEPEST, HeadSettings, from_data
from longspan.models.states import MixerStates
from longspan.models.wide.ranker import Ranker
from longspan.ops.packing import zero_padding
from longspan.options import Range, option

#: By what says how many there are, what the model must be told of items.
_FIELDS = {
    "abstracts": "abstract_ids",
    "categories": "category_ids",
    "subcategories": "subcategory_ids",
    "entities": "entity_ids",
}


@strict
@dataclass
class RecommendationSettings(HeadSettings):
    """Settings of a model that recommends."""

    recommender: str = option(
        "longspan",
        'model of items and users: "longspan", "fastformer", "nrms", "naml", "lstur", "npa", or a dotted path. `dim`, '
        '`depth`, `mixers` and other settings of layers are for "longspan" alone: the others have the sizes of their '
        "papers.",
    )
    recommender_options: dict[str, Any] | None = option(
        None, 'options of the recommender, such as {"combination": "con"} for lstur'
    )
    recommendation_loss: str = option(
        "softmax",
        '"softmax" (each clicked candidate against those of its impression that were not clicked), "pairwise" (each '
        'clicked candidate against each that was not) or "binary" (each candidate alone)',
        LOSSES,
    )
    user_mixers: list[str] | None = option(
        None, "names of mixers over the clicks of a user, repeated over `user_depth`; None means `mixers`"
    )
    user_depth: int = option(1, "number of layers over the clicks", Range(0, DEEPEST))
    user_causal: bool = option(
        False, "whether clicks see only earlier ones, so that a user's vector is updated click by click"
    )
    user_position: str = option(
        "none",
        'positions of clicks, counted back from the newest: "none", "sinusoidal", "learned" or "fourier". With '
        '"learned", all from `max_positions` on have the same.',
        POSITIONS,
    )
    wide: bool = option(
        False,
        "whether scores are added that count words and clicks: how like a title is to those clicked before, and how "
        "often its words, and the item itself, were clicked. They are counted in the training clicks first; the "
        "network is trained by itself. The weights of both are fitted to the validation split.",
    )
    users: int = from_data(
        0, "number of known users, 1 to `users`; 0 is an unknown user. The next three likewise.", Range(0)
    )
    categories: int = from_data(0, "number of categories of items", Range(0))
    subcategories: int = from_data(0, "number of subcategories", Range(0))
    entities: int = from_data(0, "number of entities that items name", Range(0))
    entity_dim: int = from_data(0, "width of the vectors of entities", Range(0))
    abstracts: bool = from_data(False, "whether items have abstracts")
    items: int = from_data(0, "number of items whose clicks are counted; 0 is an unknown one", Range(0))
    time_origin: float | int = from_data(0.0, "origin of times")
    time_unit: float | int = from_data(0.0, "length of a unit of time; 0 without times")

    def settle(self, config: Any) -> None:
        if config.embedding_dim is None:
            config.embedding_dim = recommenders.word_dim(self.recommender)

    def check(self, config: Any) -> None:
        # Options are checked where the recommender is built.
        self.recommender_options = self.recommender_options or {}
        self.user_mixers = self.user_mixers or None
        if self.user_causal and self.user_position != "none":
            raise UserError(
                "user_position counts back from the newest click, which each click changes, got "
                f"{self.user_position!r} with user_causal=True; leave one of them out."
            )
        if bool(self.entities) != bool(self.entity_dim):
            raise UserError(
                f"expected entities and the width of their vectors, got entities={self.entities} with "
                f"entity_dim={self.entity_dim}; set both or neither."
            )


@dataclass
class RecommendationOutput(ModelOutput):
    """Outputs of `LongspanForRecommendation`.

    Attributes:
        loss: a scalar, if there are labels.
        logits: (b, c), the scores of candidates; 0 at padding.
        user_vectors: (b, dim).
        history_weights: (b, h), weight of each click in the last mean over clicks, 0 at padding; None without such a
            mean, as with lstur.
        hidden_states: of the layers over titles, (n, t, w) each, if asked for.
        parts: (b, 2, c), the scores of counts and of the network, if the model has both, outside training.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    user_vectors: Tensor | None = None
    history_weights: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    parts: Tensor | None = None


class LongspanForRecommendation(LongspanPreTrainedModel):
    """A score for each candidate that a user is shown: the dot product of the user's vector and the item's.

    Items are called news here, as in the literature. `config.head.recommender` names what makes the vectors
    (`longspan.models.recommenders`). News of a batch are read once, however often they occur: `forward` takes

    - The n news of the batch. `input_ids` (n, t) are the titles' tokens, with an `attention_mask`. If the configuration
      has them and the recommender reads them: `abstract_ids` (n, s) with an `abstract_mask`, `category_ids` (n),
      `subcategory_ids` (n) and `entity_ids` (n, e), 0 for none. Instead of all of these, `news_vectors` may be what
      `encode_news` returned.

    - The b users. `history` (b, h) has the news that they clicked, oldest first, and `candidates` (b, c) those to
      score. Both are numbers from 0 to n - 1, with masks (`history_mask`, `candidate_mask`) that are 0 at padding.
      `user_ids` (b) are 0 for unknown users, as they all are without it.

    - `labels` (b, c): 1 for clicked candidates, 0 for others, -100 to ignore.

    With `config.head.wide`, `logits` are the sum of the network's and of what is counted
    (`longspan.models.wide.ranker.Ranker`), each times its scale. In training, loss and logits are those of the network
    alone. Outside it, `input_ids` are needed as well as `news_vectors`. `item_ids` (n) are optional: 0, the default, is
    an item that training does not know. So are `times` (b) of the users, made by `wide.ticks`.

    It returns a `RecommendationOutput`. The loss is that of `config.head.recommendation_loss` (`ranking_loss`), in
    float32: a mean over what `count_items` counts, or the sum divided by `num_items_in_batch`.

    Clicks that come one by one: `init_user_state`, then `step`.

    Raises:
        UserError: for an unknown recommender or option, a causal configuration, or no candidates. Also for news in both
            forms or in neither, and fields of news that are missing or not in the configuration.
    """

    head_settings = RecommendationSettings
    wide: Ranker | None

    def __init__(self, config: LongspanConfig) -> None:
        if config.causal:
            raise UserError(
                "LongspanForRecommendation expected causal=False, as words see each other, got causal=True; for clicks "
                "that come one by one set user_causal=True."
            )
        super().__init__(config)
        config = self.config
        with named_in(config.name_or_path):
            self.recommender = recommenders.build(config)
        self.longspan = LongspanModel(self.recommender.reader)
        if (head := config.head).wide:
            self.wide = Ranker(config.vocab_size, head.items, head.time_origin, head.time_unit)
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Published):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    @property
    def personal(self) -> bool:
        """Whether an item's vector depends on the user; see `encode_news`."""
        return self.recommender.personal

    def tables(self) -> list[nn.Embedding]:
        """Tables of n-grams, and the vectors of users and entities, of which a step reads few."""
        own = {"users", "entities"}
        found = [
            module
            for name, module in self.recommender.named_modules()
            if isinstance(module, nn.Embedding) and own & {*name.split(".")}
        ]
        return super().tables() + found

    def encode_news(
        self,
        input_ids: Int[Tensor, "n t"],
        attention_mask: Tensor | None = None,
        abstract_ids: Tensor | None = None,
        abstract_mask: Tensor | None = None,
        category_ids: Tensor | None = None,
        subcategory_ids: Tensor | None = None,
        entity_ids: Tensor | None = None,
    ) -> Tensor:
        """Vectors for `news_vectors`: one for each of the news, (n, dim).

        Where they depend on the user (`personal`), it is what can be said without one, (n, t, k), padded to the longest
        title of the batch. Raises UserError for missing fields, and for those that the configuration does not know.
        """
        given = dict(zip(_FIELDS.values(), (abstract_ids, category_ids, subcategory_ids, entity_ids), strict=True))
        title, mask, _ = self._read_words(input_ids, attention_mask)
        return self._encode(title, mask, abstract_mask, given)

    def encode_users(
        self,
        news_vectors: Tensor,
        history: Int[Tensor, "b h"],
        history_mask: Tensor | None = None,
        user_ids: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b h"] | None]:
        """Return the vectors of users and how much each click weighs in them, if there is a mean over clicks.

        `history` are rows of `news_vectors`, as in `forward`.
        """
        users = self._users(user_ids, history)
        clicked, mask = self._select(news_vectors, history, history_mask, users)
        return self.recommender.encode_user(clicked, mask, users)

    def select(
        self,
        news_vectors: Tensor,
        indices: Int[Tensor, "b m"],
        mask: Tensor | None = None,
        user_ids: Tensor | None = None,
    ) -> Float[Tensor, "b m d"]:
        """Return the vectors of these rows of `news_vectors`, as each user sees them; zeros where `mask` is 0."""
        return self._select(news_vectors, indices, mask, self._users(user_ids, indices))[0]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        abstract_ids: Tensor | None = None,
        abstract_mask: Tensor | None = None,
        category_ids: Tensor | None = None,
        subcategory_ids: Tensor | None = None,
        entity_ids: Tensor | None = None,
        history: Tensor | None = None,
        history_mask: Tensor | None = None,
        candidates: Tensor | None = None,
        candidate_mask: Tensor | None = None,
        user_ids: Tensor | None = None,
        news_vectors: Tensor | None = None,
        item_ids: Tensor | None = None,
        times: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecommendationOutput:
        check_attentions(self.config, output_attentions)
        counting = None if self.training else self.wide
        if counting is not None and input_ids is None:
            raise UserError("expected input_ids with wide=True, got none; give them beside news_vectors, too.")
        if counting is None and (input_ids is None) == (news_vectors is None):
            raise UserError("expected either input_ids or news_vectors, got both or neither; give exactly one.")
        if candidates is None:
            raise UserError("expected candidates to score, got none; give some, or call encode_users for users alone.")
        given = dict(zip(_FIELDS.values(), (abstract_ids, category_ids, subcategory_ids, entity_ids), strict=True))
        hidden_states = None
        if news_vectors is None:
            title, mask, hidden_states = self._read_words(input_ids, attention_mask, output_hidden_states)
            news_vectors = self._encode(title, mask, abstract_mask, given)
        elif left := [name for name, field in given.items() if field is not None]:
            raise UserError(f"expected news_vectors in place of all fields of news, got {left[0]} too; leave it out.")
        if history is None:
            history = candidates[:, :0]
        users = self._users(user_ids, candidates)
        clicked, read = self._select(news_vectors, history, history_mask, users)
        user_vectors, weights = self.recommender.encode_user(clicked, read, users)
        shown, there = self._select(news_vectors, candidates, candidate_mask, users)
        logits = (shown @ user_vectors.unsqueeze(-1)).squeeze(-1).masked_fill(~there, 0)
        loss, parts = None, None
        if counting is not None:
            assert input_ids is not None
            titles = counting.titles(input_ids, attention_mask)
            counts = counting(titles, item_ids, history, read, candidates, there, times)
            parts = torch.stack([counts, logits.to(counts.dtype)], 1)
            logits = counting.combined(counts, logits)
        if labels is not None:
            labels = labels.masked_fill(~there, IGNORED) if labels.shape == there.shape else labels
            loss = ranking_loss(self.config.head.recommendation_loss, logits, labels, num_items_in_batch)
        return RecommendationOutput(
            loss=loss,
            logits=logits,
            user_vectors=user_vectors,
            history_weights=weights,
            hidden_states=hidden_states,
            parts=parts,
        )

    def count_items(self, labels: Tensor) -> Tensor:
        """Number of items that the loss of these labels is a mean over, as `num_items_in_batch` counts them."""
        return count_items(self.config.head.recommendation_loss, labels)

    def init_user_state(self, batch_size: int, user_ids: Int[Tensor, " b"] | None = None) -> MixerStates:
        """Return the state of users before their first click, all unknown unless `user_ids` says who they are.

        It can be detached, saved (`tensors`, and `user_states_from`), moved and reordered. Rows that are `reset` become
        unknown users.

        Raises:
            UserError: for a recommender whose clicks see each other, such as nrms.
        """
        users = torch.zeros(batch_size, dtype=torch.long, device=self.device) if user_ids is None else user_ids
        state = self.recommender.init_state(users, self.dtype)
        return MixerStates([state], torch.zeros_like(users), 0, [self.recommender])

    def user_states_from(self, tensors: Mapping[str, Tensor]) -> MixerStates:
        """Return the states whose tensors `MixerStates.tensors` returned. Raises UserError if another model's."""
        return self.init_user_state(1).filled(tensors)

    def step(
        self,
        news_vectors: Float[Tensor, "b n d"],
        state: MixerStates,
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b d"], MixerStates]:
        """Read `n` more clicks of each user, those where `mask` is False left out; return users and the state after.

        The vectors are those of the news they clicked, each row's own: `select` returns them. `state` is not changed.
        Whatever the steps, the vectors of users are those of the whole history, to rounding.
        """
        if not news_vectors.shape[1]:
            raise UserError("expected at least one click to read, got none; keep the vectors of before.")
        real = torch.ones_like(news_vectors[..., 0], dtype=torch.bool) if mask is None else mask.bool()
        (clicks,) = state.layers
        vectors, reading = self.recommender.advance(
            zero_padding(news_vectors, real), real, clicks.reading, clicks.user_ids
        )
        return vectors, state.after([clicks._replace(reading=reading)], real.sum(1), news_vectors.shape[1], None)

    def _read_words(
        self, input_ids: Tensor | None, mask: Tensor | None, output_hidden_states: bool | None = False
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:
        """Return the reader's outputs for words, which of them are real, and its hidden states."""
        assert input_ids is not None
        real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
        found = self.longspan(
            input_ids=input_ids, attention_mask=real, output_hidden_states=output_hidden_states, return_dict=True
        )
        return zero_padding(found.last_hidden_state, real), real, found.hidden_states

    def _encode(
        self, title: Tensor, mask: Tensor, abstract_mask: Tensor | None, given: Mapping[str, Tensor | None]
    ) -> Tensor:
        fields = {}
        for setting, name in _FIELDS.items():
            known, field = bool(getattr(self.config.head, setting)), given[name]
            if name not in self.recommender.reads:
                continue
            if known != (field is not None):
                wanted, got, todo = ("no ", "some", "leave them out") if not known else ("", "none", "give them")
                raise UserError(
                    f"expected {wanted}{name} with {setting}={getattr(self.config.head, setting)}, got {got}; {todo}."
                )
            if field is not None:
                fields[name] = field
        abstract = fields.pop("abstract_ids", None)
        read = (None, None) if abstract is None else self._read_words(abstract, abstract_mask)[:2]
        return self.recommender.encode_news(News(title, mask, *read, **fields))

    def _select(
        self, vectors: Tensor, indices: Tensor, mask: Tensor | None, users: Tensor
    ) -> tuple[Tensor, Bool[Tensor, "b m"]]:
        real = torch.ones_like(indices, dtype=torch.bool) if mask is None else mask.bool()
        # Whatever number padding has.
        chosen = self.recommender.select(vectors, indices.masked_fill(~real, 0), users)
        return zero_padding(chosen, real), real

    def _users(self, user_ids: Tensor | None, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows[:, 0] if rows.shape[1] else rows.sum(1)) if user_ids is None else user_ids
