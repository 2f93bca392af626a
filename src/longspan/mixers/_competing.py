"""Shared part of both kinds of competing queries: parameters, and the choice of bidirectional or causal form."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.mixers._forgetting import Forgetting
from longspan.mixers.base import Capabilities, Mixer
from longspan.mixers.looks import softmax_mean, weights_at
from longspan.ops.affine import weight_and_bias
from longspan.ops.competition import hand_out
from longspan.ops.heads import head_width
from longspan.ops.packing import document_starts, zero_padding
from longspan.ops.pooling import masked_logits
from longspan.ops.scan import accumulation_dtype


class CompetingQueries(Mixer):
    """Positions compete for one query per head by a score; `mix_both_ways` and `mix_causally` say what for."""

    capabilities = Capabilities(causal=True, streaming=True, counts=True, looks=True, slices=True)
    NAME: ClassVar[str]
    KEY_BIAS: ClassVar[bool]

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        bias: bool = True,
        output_projection: bool = True,
        forget: str = "none",
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width(self.NAME, dim, heads)
        self.heads = heads
        self.zeroes_padding = not causal
        self.score = nn.Linear(dim, heads, bias=False)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias and self.KEY_BIAS)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=False) if output_projection else nn.Identity()
        self.forgetting = Forgetting(self.NAME, dim, heads, forget, causal=causal)
        nn.init.normal_(self.score.weight, std=dim**-0.5)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self.mix_causally(x, mask, self.init_state(x.shape[0], x.dtype, x.device), None)[0]
        return self.mix_both_ways(x, mask)

    def mix_documents(self, x: Tensor, mask: Tensor | None, document_ids: Tensor) -> Tensor:
        if not self.causal:
            return super().mix_documents(x, mask, document_ids)
        state = self.init_state(x.shape[0], x.dtype, x.device)
        return self.mix_causally(x, mask, state, document_starts(document_ids, mask))[0]

    def advance(self, x: Tensor, mask: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        return self.mix_causally(x, mask, state, None)

    @abstractmethod
    def mix_both_ways(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the bidirectional form, with zeros where `mask` is False."""

    @abstractmethod
    def mix_causally(self, x: Tensor, mask: Tensor | None, state: Any, starts: Tensor | None) -> tuple[Tensor, Any]:
        """Return the causal form and the state after the last position; where `starts` is True a document begins."""

    def hand_out(self, weights: Tensor, answers: Tensor, mask: Tensor | None) -> Tensor:
        """Return W_o concat_h(weights_th answers_h), from weights (b, h, t) that are zero at padding."""
        if isinstance(self.output, nn.Identity):
            return hand_out(weights, answers, None)
        weight, bias = weight_and_bias(self.output)
        y = hand_out(weights, answers, weight)
        # W_o has no bias; an adapter's may.
        return y if bias is None else zero_padding(y + bias, mask)

    def competing(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the score of each position and head, (b, t, h), far below all others where `mask` is False."""
        return masked_logits(self.score(x), mask)

    def query_shares(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the shares of positions (b, h, t) as seen from `at`, and how each meets its query, (b, t, h)."""
        rates, logits = self.forgetting(x, mask), self.score(x)
        query = softmax_mean(self.split(self.query(x)), logits, mask, rates, self.causal).to(
            accumulation_dtype(x.dtype)
        )
        return weights_at(logits, mask, at, rates, self.causal), (query * self.split(self.key(x))).sum(-1)

    def split(self, x: Tensor) -> Tensor:
        """Return (b, t, d) as (b, t, h, e)."""
        return x.unflatten(2, (self.heads, -1))
