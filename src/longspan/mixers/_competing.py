"""What both forms of competing queries share: their parameters, and the way from a call to their two orders."""

from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.mixers import check_causal
from longspan.ops.heads import head_width
from longspan.ops.packing import by_segment, document_starts, zero_padding
from longspan.ops.scan import FLOOR


class CompetingQueries(nn.Module):
    """Positions compete for one query per head by a score; `mix` and `mix_causally` say what the query is for."""

    NAME: ClassVar[str]
    KEY_BIAS: ClassVar[bool]

    def __init__(
        self, dim: int, *, heads: int = 8, causal: bool = False, bias: bool = True, output_projection: bool = True
    ) -> None:
        super().__init__()
        self.width = head_width(self.NAME, dim, heads)
        self.heads = heads
        self.causal = causal
        self.score = nn.Linear(dim, heads, bias=False)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias and self.KEY_BIAS)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=False) if output_projection else nn.Identity()
        nn.init.normal_(self.score.weight, std=dim**-0.5)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        if self.causal:
            starts = None if segments is None else document_starts(segments, mask)
            y, _ = self.mix_causally(x, mask, self.init_state(x.shape[0]), starts)
            return zero_padding(y, mask)
        if segments is not None:
            return by_segment(self, x, segments, mask)
        return self.mix(x, mask)

    def step(
        self, x: Float[Tensor, "b n d"], state: Any, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """Continue a sequence by `n` positions, of which those where `mask` is False are passed over."""
        check_causal(self)
        y, state = self.mix_causally(x, mask, state, None)
        return zero_padding(y, mask), state

    def init_state(self, batch_size: int) -> Any:
        """Return the state before the first position; its size never changes."""
        raise NotImplementedError

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the bidirectional form, with zeros where `mask` is False."""
        raise NotImplementedError

    def mix_causally(self, x: Tensor, mask: Tensor | None, state: Any, starts: Tensor | None) -> tuple[Tensor, Any]:
        """Return the causal form and the state after the last position; where `starts` is True a document begins."""
        raise NotImplementedError

    def competing(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the score of each position and head, (b, t, h), which outweighs nothing where `mask` is False."""
        scores: Tensor = self.score(x)
        return scores if mask is None else scores.masked_fill(~mask.unsqueeze(-1), FLOOR)

    def split(self, x: Tensor) -> Tensor:
        """Return (b, t, d) as (b, t, h, e)."""
        return x.unflatten(2, (self.heads, -1))
