"""A language model's network mixed with counted n-grams and a cache: `Mixture`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.parts.ngrams import NOTHING
from longspan.models.wide.base import WidePart
from longspan.models.wide.cache import CacheQuery, CacheScores, cached
from longspan.models.wide.kneser_ney import KneserNey
from longspan.ops.pooling import accumulation_dtype

#: Sharpnesses of the caches; each is a part of its own.
SHARPNESSES = (8.0, 24.0)
#: Width of the gate's hidden layer.
HIDDEN = 32
_NEVER = -30.0


@dataclass(frozen=True)
class MixtureInput:
    """Inputs of a mixture at some positions.

    Attributes:
        contexts: `(b, n, c)` the nodes of the n-grams that end there.
        places: Where the cache looks; None without a cache.
        hidden: `(b, n, d)` the network's outputs.
    """

    contexts: Int[Tensor, "b n c"]
    places: CacheQuery | None
    hidden: Float[Tensor, "b n d"]


class Mixture(WidePart):
    """log p(w) = log Σ_k g_k p_k(w), the parts k being the network, counted n-grams and caches.

    The weights g depend on how reliable the counts are, on what the cache finds and on the network's output: a gate
    with one hidden layer, which is fitted to documents that neither the network nor the counts have seen. Nothing here
    is learned by gradients through the network. Until the gate is fitted, the network alone counts.

    Sources: Grave et al. 2017 (`longspan.models.wide.cache`), Chen and Goodman 1999 (`KneserNey`).

    Args:
        vocab_size: Number of token ids.
        dim: Width of the network's outputs.
        sizes: Number of n-grams of 2, 3 and so on tokens.
        cache: Number of positions that the cache looks back; 0 for no cache.
    """

    def __init__(self, vocab_size: int, dim: int, sizes: Sequence[int], cache: int) -> None:
        super().__init__()
        self.dim, self.cache = dim, cache
        self.counts = KneserNey(vocab_size, sizes)
        self.parts = ["network", "counts", *(f"cache {sharpness:g}" for sharpness in SHARPNESSES if cache)]
        self.gate = Gate(self.evidence_size, len(self.parts))

    def reset_parameters(self) -> None:
        """Forget everything: the network alone counts."""
        self.counts.reset_parameters()
        self.gate.reset_parameters()

    @property
    def evidence_size(self) -> int:
        """Number of values that the weights depend on."""
        return 2 * self.counts.before + 2 * bool(self.cache) + self.dim

    @property
    def remembers(self) -> int:
        """Number of positions to remember."""
        return max(self.cache, self.counts.before - 1)

    def nothing_before(self, hidden: Float[Tensor, "b t d"]) -> dict[str, Tensor]:
        """State before the first position of rows like these."""
        b, m = len(hidden), self.remembers
        outputs = {"outputs": hidden.new_zeros(b, m, self.dim)} if self.cache else {}
        return {"ids": torch.full((b, m), NOTHING, device=hidden.device), **outputs}

    def to_remember(
        self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None, hidden: Float[Tensor, "b t d"]
    ) -> dict[str, Tensor]:
        """State of positions to remember: `ids` (b, t), and their `outputs` (b, t, d)."""
        outputs = {"outputs": nn.functional.normalize(hidden.detach(), dim=-1)} if self.cache else {}
        return {"ids": ids if mask is None else torch.where(mask, ids, NOTHING), **outputs}

    def inputs_at(
        self,
        hidden: Float[Tensor, "b t d"],
        now: Mapping[str, Tensor],
        before: Mapping[str, Tensor] | None,
        where: Int[Tensor, " n"],
        document_ids: Int[Tensor, "b t"] | None = None,
    ) -> MixtureInput:
        """Inputs at the positions `where` of these.

        Args:
            hidden: The network's outputs.
            now: Result of `to_remember` for them.
            before: State before them; None at the start.
            where: Numbers of the positions.
            document_ids: Numbers of packed documents, only without `before`.
        """
        ids = now["ids"]
        reach = max(0, self.counts.before - 1)
        earlier = ids[:, :0] if before is None else before["ids"][:, before["ids"].shape[1] - reach :]
        contexts = self.counts.contexts(torch.cat((earlier, ids), 1), document_ids)
        contexts = contexts[:, earlier.shape[1] :][:, where]
        places = None
        if self.cache:
            kept = now if before is None else {name: torch.cat((before[name], now[name]), 1) for name in now}
            shift = kept["ids"].shape[1] - ids.shape[1]
            places = CacheQuery(now["outputs"][:, where], where + shift, kept["outputs"], kept["ids"], document_ids)
        return MixtureInput(contexts, places, hidden[:, where])

    def of_targets(
        self, read: MixtureInput, network: Float[Tensor, "b n"], targets: Int[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n e"]]:
        """Return log p of each target in each part, given the network's, and the evidence that the gate reads."""
        targets, dtype = targets.clamp_min(0), accumulation_dtype(network.dtype)
        found = None if read.places is None else cached(read.places, self.cache, SHARPNESSES, targets)
        parts = [network, self.counts.probabilities(read.contexts, targets).log()]
        if found is not None:
            parts += found.probabilities.log().unbind(2)
        return torch.stack([part.to(dtype) for part in parts], 2), self._evidence(read, found)

    def distribution(self, read: MixtureInput, network: Float[Tensor, "b n v"]) -> Float[Tensor, "b n v"]:
        """Return log p of all tokens, given the network's."""
        found = None
        parts = [self.counts.distributions(read.contexts.flatten(0, 1)).view(network.shape)]
        if read.places is not None:
            found = cached(read.places, self.cache, SHARPNESSES, vocab_size=self.counts.vocab_size)
            parts += found.probabilities.unbind(2)
        shares = self.gate(self._evidence(read, found)).to(accumulation_dtype(network.dtype))
        others = torch.stack(parts, 2).to(shares.dtype)
        rest = (shares[..., None, 1:].exp() @ others).squeeze(2)
        return torch.logaddexp(network + shares[..., :1], rest.log())

    def _evidence(self, read: MixtureInput, found: CacheScores | None) -> Float[Tensor, "b n e"]:
        reliability = self.counts.reliability(read.contexts)
        hidden = nn.functional.layer_norm(read.hidden.detach().float(), (self.dim,))
        lookup = [] if found is None else [torch.stack((found.number.float().log1p(), found.similarity), 2)]
        return torch.cat((*lookup, reliability, hidden), 2)


class Gate(nn.Module):
    """The logarithms of the weights of a mixture's parts, of what is known at a position.

    Equations: log_softmax(W₂ relu(W₁ (e - μ) / σ + b₁) + b₂). Caches have no weight while they are empty; then their
    first number e₁, the logarithm of 1 and how many outputs there are, is 0.

    Args:
        size: Number of numbers e.
        parts: Number of parts: the network, the counts, and caches.
    """

    mean: Tensor
    deviation: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor

    def __init__(self, size: int, parts: int) -> None:
        super().__init__()
        self.size, self.parts = size, parts
        shapes = {"mean": (size,), "deviation": (size,), "inner": (HIDDEN, size), "inner_bias": (HIDDEN,)}
        for name, shape in {**shapes, "outer": (parts, HIDDEN), "outer_bias": (parts,)}.items():
            self.register_buffer(name, torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget everything: the network alone counts."""
        self.keep_one(0)

    def keep_one(self, part: int) -> None:
        """Let the part of this number alone count."""
        for tensor in (self.mean, self.inner, self.inner_bias, self.outer):
            nn.init.zeros_(tensor)
        nn.init.ones_(self.deviation)
        nn.init.constant_(self.outer_bias, _NEVER)
        with torch.no_grad():
            self.outer_bias[part] = 0

    def forward(self, evidence: Float[Tensor, "*n e"]) -> Float[Tensor, "*n k"]:
        return log_weights(evidence, [tensor.float() for tensor in self.buffers()])


def log_weights(evidence: Float[Tensor, "*n e"], tensors: Sequence[Tensor]) -> Float[Tensor, "*n k"]:
    """Output of a `Gate` with these tensors, in the order of its buffers."""
    mean, deviation, inner, inner_bias, outer, outer_bias = tensors
    hidden = nn.functional.linear((evidence.float() - mean) / deviation, inner, inner_bias).relu()
    scores = nn.functional.linear(hidden, outer, outer_bias)
    if len(outer) > 2:
        empty = (evidence[..., :1] == 0).expand_as(scores[..., 2:])
        scores = torch.cat((scores[..., :2], scores[..., 2:].masked_fill(empty, -torch.inf)), -1)
    return scores.log_softmax(-1)
