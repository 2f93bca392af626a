"""Transformer-XL's attention: scores by content and by distance, over a segment and the memory before it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.errors import UserError, check_choice
from longspan.mixers.base import Capabilities
from longspan.mixers.looks import Pairwise, left_aligned_values
from longspan.ops.affine import weight_and_bias
from longspan.ops.cache import all_visible, as_mask, extended, spelled_out
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.packing import left_aligned, left_aligned_step
from longspan.ops.relative import BLOCK, distance_encoding, distance_range, relative_attention

STARTS = ("empty", "zeros")


class RelativeState(NamedTuple):
    """The inputs of the last positions, (b, m, dim), newest last, and which of them are `visible` (`ops.cache`)."""

    memory: Tensor
    visible: Tensor


class Relative(Pairwise):
    """Transformer-XL's relative attention: scores depend on the distance of a key, not on its position.

    Equations (per head, of width e = dim / heads):
        q_i = W_q x_i, k_j = W_k x_j, v_j = W_v x_j
        R_δ = [sin(δ f), cos(δ f)], f_l = 10000^(-2l/dim), l = 0 … dim/2 - 1
        a_ij = ((q_i + u)·k_j + (q_i + v)·W_R R_{i-j}) / √e
        y_i = W_o concat_h( Σ_j softmax_j(a_ij) v_j );  causal: j <= i, memory included

    Order of computation: scores by distance are one product of the queries with all W_R R_δ, whose rows are then
    shifted into place, in blocks of queries; the backward pass computes a block's weights again. When few positions
    follow a long memory, the projections fold into the queries, exactly: q·(W_k x_j) = (W_kᵀ q)·x_j, likewise W_R, and
    Σ_j a_j W_v x_j = W_v Σ_j a_j x_j. Then m positions of memory cost 3·m·dim·heads a token instead of 3·m·dim².

    Cost: 3·t²·dim + 6·t·dim² time, t·dim memory; same_length 3·t·memory·dim time; streaming state memory·dim
    Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", https://arxiv.org/abs/1901.02860
    Deviations: none in the formula. Distances count real positions only, without padding before or between them. The
        bidirectional form has R at negative distances too, as in XLNet. `forward` sees the whole sequence. In `step`, a
        segment sees itself and the memory, as published. Once more than `memory` positions have passed, what is
        forgotten depends on where the segments end, except with `same_length`. `same_length` lets a position see itself
        and `memory` positions before it, as the authors' TensorFlow code does; their PyTorch code, and what derives
        from it, sees one fewer: `memory` is then its mem_len - 1.

    Args:
        dim: width of the input and the output; even.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        memory: number of positions that `step` remembers; no gradient flows into them.
        same_length: whether every position sees itself and at most `memory` positions before it (causal only).
        clamp: distances beyond it count as `clamp`; 0 for none.
        start: the memory before the first position: "empty", or "zeros": `memory` vectors of zeros that are seen, from
            which published Transformer-XL models start.
        bias: whether queries, keys, values and output have biases (Transformer-XL has none). W_R never has one, as it
            would shift all of a query's scores equally, which softmax ignores.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.

    Raises:
        UserError: when `heads` does not divide `dim`, `dim` is odd, `memory` or `clamp` is negative, or `same_length`
            is set without `causal`; for an unknown `start`.
    """

    capabilities = Capabilities(causal=True, streaming=True, looks=True)
    memory: int

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        memory: int = 512,
        same_length: bool = False,
        clamp: int = 0,
        start: str = "empty",
        bias: bool = False,
        output_projection: bool = True,
    ) -> None:
        super().__init__(dim, causal=causal)
        width = head_width("relative", dim, heads)
        if dim % 2:
            raise UserError(f"relative expected an even dim, half sines and half cosines, got dim={dim}; change it.")
        if memory < 0 or clamp < 0:
            raise UserError(
                f"relative expected memory and clamp of at least 0, got memory={memory} and clamp={clamp}; change them."
            )
        check_choice("start of relative's memory", start, STARTS)
        if same_length and not causal:
            raise UserError("same_length expected a causal mixer, got causal=False; build it with causal=True.")
        self.heads = heads
        self.memory = memory
        self.window = memory if same_length else None
        self.clamp = clamp
        self.start = start
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.distance = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()
        # u and v. Models that share them over layers assign one parameter to all.
        self.content_bias = nn.Parameter(torch.empty(heads, width))
        self.distance_bias = nn.Parameter(torch.empty(heads, width))
        for shared in (self.content_bias, self.distance_bias):
            nn.init.normal_(shared, std=0.02)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self._attend(x, x, None)
        return left_aligned(lambda real, there: self._attend(real, real, there), x, mask)

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        def gather(x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
            key = split_heads(self.key(x), self.heads)
            encoded, content, position = self._scoring(x, x.shape[1])
            return self._weighing(content, position, encoded, key, values, mask)

        return left_aligned_values(gather, x, mask, values)

    def operations(self, length: int) -> int:
        products = 0
        for first in range(0, length, BLOCK):
            end = min(first + BLOCK, length)
            keys = (end if self.causal else length) - (0 if self.window is None else max(0, first - self.window))
            # Scores by content and the sum of values have a column for each key, scores by distance some more.
            products += (end - first) * (3 * keys + end - first) * self.dim
        largest, smallest = distance_range(length, length, self.causal, self.window)
        projected = (3 if isinstance(self.output, nn.Identity) else 4) * length + largest - smallest + 1
        return 2 * products + 2 * projected * self.dim**2

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> RelativeState:
        length = self.memory if self.start == "zeros" else 0
        memory = torch.zeros(batch_size, length, self.dim, dtype=dtype, device=device)
        return RelativeState(memory, all_visible(batch_size, device))

    def state_size(self, positions: int) -> int:
        return self.dim * (self.memory if self.start == "zeros" else min(positions, self.memory))

    @property
    def exact_length(self) -> int | None:
        if self.window is not None:
            return None
        return self.memory if self.start == "empty" else 0

    def set_memory(self, positions: int) -> None:
        """Let `step` remember the last `positions` positions, and `same_length` see as many."""
        if positions < 0:
            raise UserError(f"relative expected a memory of at least 0, got {positions}; increase it.")
        self.memory = positions
        self.window = None if self.window is None else positions

    def reset(self, state: RelativeState, rows: Bool[Tensor, " b"]) -> RelativeState:
        seen = state.memory.shape[1]
        visible = spelled_out(state.visible, seen).masked_fill(rows.unsqueeze(1), self.start == "zeros")
        return RelativeState(state.memory.masked_fill(rows.view(-1, 1, 1), 0), visible)

    def advance(self, x: Tensor, mask: Tensor | None, state: RelativeState) -> tuple[Tensor, RelativeState]:
        """No gradient flows to the positions of earlier steps."""
        if mask is None:
            return self._continue(x, None, state)
        return left_aligned_step(lambda real, there: self._continue(real, there, state), x, mask)

    def _continue(self, x: Tensor, mask: Tensor | None, state: RelativeState) -> tuple[Tensor, RelativeState]:
        """Continue with `x`, whose real positions come first in each row; in the memory they come last."""
        seen = torch.cat((state.memory.detach().to(x.dtype), x), 1)
        visible = extended(state.visible, state.memory.shape[1], x.shape[1], mask)
        y = self._attend(x, seen, as_mask(visible))
        past = max(0, seen.shape[1] - self.memory)
        if mask is None:
            # Copies: a view would keep everything seen so far in memory.
            return y, RelativeState(seen.detach()[:, past:].clone(), visible[:, past:].clone())
        kept = torch.argsort(visible.to(torch.uint8), dim=1, stable=True)[:, past:]
        memory = seen.detach().gather(1, kept.unsqueeze(-1).expand(-1, -1, self.dim))
        return y, RelativeState(memory, visible.gather(1, kept))

    def _attend(self, x: Tensor, seen: Tensor, visible: Tensor | None) -> Tensor:
        """Attend from `x` to `seen`, whose last positions are those of `x`."""
        n, m = x.shape[1], seen.shape[1]
        encoded, content, position = self._scoring(x, m)
        folded = self._folded_key() if (m - n) * self.dim > n * m * (self.heads - 1) else None
        if folded is not None:
            mixed = relative_attention(
                _fold(content, folded),
                _fold(position, weight_and_bias(self.distance)[0]),
                seen,
                seen,
                encoded,
                visible,
                True,
                self.window,
            )
            weight, bias = weight_and_bias(self.value)
            mixed = merge_heads(torch.einsum("bhnd,hed->bhne", mixed, weight.unflatten(0, (self.heads, -1))))
            # The weights of a query sum to 1.
            mixed = mixed if bias is None else mixed + bias
        else:
            key, value = (split_heads(projection(seen), self.heads) for projection in (self.key, self.value))
            mixed = merge_heads(self._weighing(content, position, encoded, key, value, visible))
        y: Tensor = self.output(mixed)
        return y

    def _scoring(self, x: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return R of the distances of x to `keys` positions, whose last it is, and (q + u) / √e and (q + v) / √e."""
        largest, smallest = distance_range(x.shape[1], keys, self.causal, self.window)
        distances = torch.arange(largest, smallest - 1, -1, device=x.device)
        if self.clamp:
            distances = distances.clamp(-self.clamp, self.clamp)
        query = split_heads(self.query(x), self.heads)
        scale = (self.heads / self.dim) ** 0.5
        content = (query + self.content_bias.unsqueeze(1)) * scale
        position = (query + self.distance_bias.unsqueeze(1)) * scale
        return distance_encoding(distances, self.dim, x.dtype), content, position

    def _weighing(
        self, content: Tensor, position: Tensor, encoded: Tensor, key: Tensor, value: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Return each head's sums of values."""
        distance_key = split_heads(self.distance(encoded).unsqueeze(0), self.heads)[0]
        return relative_attention(content, position, key, value, distance_key, visible, self.causal, self.window)

    def _folded_key(self) -> Tensor | None:
        """Return the keys' matrix, or None while a bias of theirs is trained.

        The bias shifts all of a query's scores equally: folded, it would go unused, which distributed trainers reject.
        """
        weight, bias = weight_and_bias(self.key)
        return weight if bias is None or not torch.is_grad_enabled() else None


def _fold(query: Tensor, weight: Tensor) -> Tensor:
    """Return Wᵀq for each head's rows of W: its products with unprojected keys are those of q with projected ones."""
    return torch.einsum("bhne,hed->bhnd", query, weight.unflatten(0, (query.shape[1], -1)))


def naive(mixer: Relative, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the equations, query by query, with W_R R_{i-j} for each pair."""
    y = torch.zeros_like(x)
    frequencies = torch.tensor([10000 ** (-2 * i / mixer.dim) for i in range(mixer.dim // 2)], dtype=x.dtype)
    width = mixer.dim // mixer.heads
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        document = x[row, real]
        keys, values = mixer.key(document), mixer.value(document)
        for i, at in enumerate(real):
            j = torch.arange(len(real))
            if mixer.causal:
                j = j[j <= i]
            if mixer.window is not None:
                j = j[j >= i - mixer.window]
            distance = i - j if not mixer.clamp else (i - j).clamp(-mixer.clamp, mixer.clamp)
            angles = distance.to(x.dtype).outer(frequencies)
            by_distance = mixer.distance(torch.cat((angles.sin(), angles.cos()), 1))
            query = mixer.query(document[i])
            mixed = []
            for head in range(mixer.heads):
                part = slice(head * width, (head + 1) * width)
                scores = keys[j, part] @ (query[part] + mixer.content_bias[head])
                scores = scores + by_distance[:, part] @ (query[part] + mixer.distance_bias[head])
                mixed.append((scores / width**0.5).softmax(0) @ values[j, part])
            y[row, at] = mixer.output(torch.cat(mixed))
    return y
