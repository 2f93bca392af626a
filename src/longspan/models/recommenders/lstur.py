"""LSTUR: who the user is, and a GRU over what they clicked last."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.errors import UserError, check_choice
from longspan.mixers.recurrent import RecurrentState, SteppedUnit
from longspan.models.recommenders._parts import Text
from longspan.models.recommenders.base import News, Recommender, UserTable, table, words_alone
from longspan.ops.packing import left_aligned_step
from longspan.ops.pooling import accumulation_dtype

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig

COMBINATIONS = ("ini", "con")


class Lstur(Recommender):
    """A vector of the user, learned over the long term, and a GRU over the items clicked, the short term (LSTUR).

    Equations:
        words: c_t = ReLU(W [w_{t-1}; w_t; w_{t+1}] + b),  title = Σ_t softmax_t(q·tanh(V c_t + v)) c_t
        item = [title; e_category; e_subcategory]
        GRU over items n_1 ... n_h: r, z = σ(W n + U h),  h̃ = tanh(W_h n + r ⊙ U_h h),  h = (1 - z) ⊙ h̃ + z ⊙ h
        ini: the GRU begins with the user's vector u_l; user = its last state h
        con: it begins with zeros; user = [h; u_l], each of half the width
        score = user·item; in training u_l is zero with the probability `hidden`

    Cost: 6·h·dim² per user, one click after the other; streams: constant time for each
    Source: An et al. 2019, "Neural News Recommendation with Long- and Short-term User Representations", ACL
    Deviations: categories that the data do not have are left out. The GRU is PyTorch's: the reset gate acts on U_h h,
        and there are two biases. Padding is masked everywhere. A user without clicks is u_l (ini) or [0; u_l] (con).

    Args:
        config: the model's, with its words, categories and users.
        combination: "ini" or "con".
        filters: width of the convolution.
        window: words that it sees.
        category_dim: width of the vectors of categories and subcategories.
        query_dim: width of the query over words.
        hidden: probability that a user is unknown in training.
        dropout: of words and of the convolution.

    Raises:
        UserError: for an unknown combination.
    """

    reads = frozenset({"category_ids", "subcategory_ids", "user_ids"})
    needs_users = True
    streams = True
    word_dim = 300

    def __init__(
        self,
        config: "LongspanConfig",
        *,
        combination: str = "ini",
        filters: int = 300,
        window: int = 3,
        category_dim: int = 100,
        query_dim: int = 200,
        hidden: float = 0.5,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        check_choice("combination", combination, COMBINATIONS)
        self.reader = words_alone(config)
        self.title = Text(self.reader.dim, filters=filters, window=window, query_dim=query_dim, dropout=dropout)
        self.category = table(config.head.categories, category_dim) if config.head.categories else None
        self.subcategory = table(config.head.subcategories, category_dim) if config.head.subcategories else None
        self.dim = filters + category_dim * (bool(config.head.categories) + bool(config.head.subcategories))
        self.begins = combination == "ini"
        if not self.begins and self.dim % 2:
            raise UserError(
                f"expected an even width for combination='con', half for each part, got {self.dim} (filters and "
                "categories); change filters."
            )
        self.width = self.dim if self.begins else self.dim // 2
        self.users = UserTable(config.head.users, self.width, hidden)
        self.clicks = SteppedUnit(self.dim, self.width, 3, True)

    def encode_news(self, news: News) -> Tensor:
        parts = [self.title(news.title, news.title_mask)]
        for each, ids in ((self.category, news.category_ids), (self.subcategory, news.subcategory_ids)):
            if each is not None:
                parts.append(each(ids))
        return torch.cat(parts, 1)

    def encode_user(self, clicked: Tensor, mask: Tensor, user_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        long = self.users(user_ids)
        state = self._start(long)
        if clicked.shape[1]:
            state = self._read_clicks(clicked, mask, state)
        return self._combined(state, long), None

    def empty_state(self, user_ids: Tensor, dtype: torch.dtype) -> RecurrentState:
        return self._start(self.users(user_ids))

    def advance(
        self, clicked: Tensor, mask: Tensor, state: RecurrentState, user_ids: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        state = self._read_clicks(clicked, mask, state)
        return self._combined(state, self.users(user_ids)), state

    def _start(self, long: Tensor) -> RecurrentState:
        long = long.to(accumulation_dtype(long.dtype))
        return RecurrentState(long if self.begins else torch.zeros_like(long), long[:, :0])

    def _read_clicks(self, clicked: Tensor, mask: Tensor, state: RecurrentState) -> RecurrentState:
        def step(real: Tensor, there: Tensor) -> tuple[Tensor, RecurrentState]:
            # Of what it puts out, the last is in the state, and the rest is not needed.
            return real, self.clicks(real, state, there)[1]

        return left_aligned_step(step, clicked, mask)[1]

    def _combined(self, state: RecurrentState, long: Tensor) -> Tensor:
        short = state.hidden.to(long.dtype)
        return short if self.begins else torch.cat((short, long), 1)
