"""Copying tokens of the source: the pointer-generator of See et al. 2017."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.models.parts.losses import CHUNK
from longspan.ops.counts import counting, log_counts, present
from longspan.ops.pooling import accumulation_dtype

#: Width of keys and queries: a source of m tokens takes m x WIDTH numbers.
WIDTH = 64
#: In place of the logarithm of 0, of which there is no gradient.
_NEVER = -1e30


class Source(NamedTuple):
    """A source as `CopyAttention` keeps it: its `keys` (b, m, e), its tokens `ids` (b, m), and its `mask` (b, m), which
    may hold counts (`ops.counts`).
    """

    keys: Tensor
    ids: Tensor
    mask: Tensor


class CopyAttention(nn.Module):
    """Mix the probabilities of a vocabulary with those of copying a token of the source.

    With h_t the decoder's output, e_j the encoder's and w_j the token of the source at position j:

        g_t = σ(w_g·h_t + b_g)
        a_tj = softmax_j((W_q h_t)·(W_k e_j) / √e)
        p_t(w) = g_t softmax(s_t)_w + (1 - g_t) Σ_{j: w_j = w} a_tj

    Source: See, Liu and Manning 2017, https://arxiv.org/abs/1704.04368. Unlike there, the attention has its own
    dot-product query, and g is a function of h_t alone, which has read the source through cross attention. Tokens
    outside the vocabulary are not copied: subwords have none. There is no coverage. A source without real positions
    has g = 1.

    Cost: 2·m·e operations for each target token. The loss needs no probabilities of other tokens than the target.

    Args:
        dim: width of h and e.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, min(dim, WIDTH))
        self.key = nn.Linear(dim, min(dim, WIDTH), bias=False)
        self.gate = nn.Linear(dim, 1)

    def source_keys(
        self, encoded: Float[Tensor, "b m d"], ids: Int[Tensor, "b m"], mask: Shaped[Tensor, "b m"] | None
    ) -> Source:
        """Keys of a source, from the encoder's outputs, with its tokens and mask."""
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        return Source(self.key(encoded), ids, mask)

    def log_probabilities(
        self, hidden: Float[Tensor, "b t d"], scores: Float[Tensor, "b t v"], source: Source
    ) -> Float[Tensor, "b t v"]:
        """Return log p of each token of the vocabulary, `scores` being the logits of the vocabulary.

        Several rows in turn, such as beams, may have the same source.
        """
        if len(source.ids) < len(hidden):
            outputs, logits = (each.reshape(len(source.ids), -1, each.shape[2]) for each in (hidden, scores))
            return self.log_probabilities(outputs, logits, source).view_as(scores)
        query, generates, copies = self._choices(hidden, source)
        exact = scores.to(query.dtype)
        shares = self._scores(query, source).softmax(-1).masked_fill(~present(source.mask).unsqueeze(1), 0)
        where = source.ids.unsqueeze(1).expand_as(shares)
        copied = torch.zeros_like(exact).scatter_add(2, where, shares)
        generated = exact.log_softmax(-1) + generates.unsqueeze(-1)
        # A token that the source lacks has the logarithm of nothing, and no gradient from there.
        there = copied > 0
        both = torch.logaddexp(generated, copies.unsqueeze(-1) + copied.where(there, 1).log())
        return both.where(there, generated)

    def losses(
        self,
        hidden: Float[Tensor, "b t d"],
        losses: Float[Tensor, "b t"],
        targets: Int[Tensor, "b t"],
        source: Source,
    ) -> Float[Tensor, "b t"]:
        """Return -log p of each target in nats, `losses` being those of the vocabulary alone."""
        query, generates, copies = self._choices(hidden, source)
        copied = self._log_copied(query, targets, source)
        return -torch.logaddexp(generates - losses, copies + copied)

    def _choices(self, hidden: Tensor, source: Source) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries (b, t, e), and log g and log(1 - g) (b, t), in at least float32."""
        exact = accumulation_dtype(hidden.dtype)
        gate = self.gate(hidden).squeeze(-1).to(exact)
        empty = ~present(source.mask).any(1, keepdim=True)
        generates = nn.functional.logsigmoid(gate).masked_fill(empty, 0)
        return self.query(hidden).to(exact), generates, nn.functional.logsigmoid(-gate).masked_fill(empty, _NEVER)

    def _scores(self, query: Tensor, source: Source) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            scores = query @ source.keys.to(query.dtype).mT * query.shape[-1] ** -0.5
        if counting(source.mask):
            scores = scores + log_counts(source.mask).to(scores.dtype).unsqueeze(1)
        return scores.masked_fill(~present(source.mask).unsqueeze(1), _NEVER)

    def _log_copied(self, query: Tensor, targets: Tensor, source: Source) -> Tensor:
        """Return log Σ a_tj over the positions with the target (b, t), a few target positions at a time."""

        def part_of(query: Tensor, targets: Tensor) -> Tensor:
            scores = self._scores(query, source)
            same = (source.ids.unsqueeze(1) == targets.unsqueeze(2)) & present(source.mask).unsqueeze(1)
            found = scores.masked_fill(~same, _NEVER).logsumexp(-1) - scores.logsumexp(-1)
            return found.where(same.any(-1), _NEVER)

        batch, positions = source.ids.shape
        most = max(1, CHUNK // max(1, batch * positions))
        if query.shape[1] <= most:
            return part_of(query, targets)
        parts = []
        for part, wanted in zip(query.split(most, 1), targets.split(most, 1), strict=True):
            if torch.is_grad_enabled():
                parts.append(checkpoint(part_of, part, wanted, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(part_of(part, wanted))
        return torch.cat(parts, 1)
