"""Interpolated modified Kneser-Ney smoothing in tables: `KneserNey`.

The probability of a token w after the k - 1 tokens h is, from order k = 1 up to the highest,

    p_k(w | h) = max(c(hw) - D(c(hw)), 0) / c(h) + γ(h) p_{k-1}(w | h without its first token)

with p_0 the uniform distribution over the vocabulary and p_k = p_{k-1} where h was never seen. At the highest order
c(hw) counts how often hw occurs; below, it counts the different tokens that precede hw, or the occurrences of an hw
that begins a document, which nothing precedes. c(h) = Σ_w c(hw), and γ(h) is what the discounts have taken away, so
that probabilities add up to one. The discounts D of counts 1, 2 and more are those of Chen and Goodman (1999,
https://doi.org/10.1006/csla.1999.0128), per order and from the numbers of n-grams that are counted 1 to 4 times.

N-grams form a tree: each is a node below that of its first n - 1 tokens. Single tokens are the nodes 0 to V - 1. All
longer n-grams are numbered by their keys, (node above) · V + (last token), in increasing order, so that one sorted
array finds the n-grams of every order.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.models.parts.ngrams import NOTHING
from longspan.ops.execution import exporting

#: No n-gram.
_UNKNOWN = -1


class KneserNey(nn.Module):
    """The probabilities of the next token by counted n-grams. Nothing here is learned by gradients.

    Args:
        vocab_size: Number V of token ids.
        sizes: Number of n-grams of 2, 3 and so on tokens.
    """

    keys: Tensor
    shares: Tensor
    first: Tensor
    left: Tensor
    seen: Tensor

    def __init__(self, vocab_size: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.vocab_size, self.sizes = vocab_size, tuple(sizes)
        grams, contexts = sum(self.sizes), vocab_size + sum(self.sizes[:-1])
        # Not parameters, which transformers would have optimizers change once they come from a file.
        #: `(g,)` the keys of n-grams of at least two tokens, in increasing order.
        self.register_buffer("keys", torch.empty(grams, dtype=torch.int64))
        #: `(g,)` how much each adds: (c(hw) - D) / c(h).
        self.register_buffer("shares", torch.empty(grams))
        #: `(V,)` p_1.
        self.register_buffer("first", torch.empty(vocab_size))
        #: `(c,)` γ of each node, 1 for what nothing follows.
        self.register_buffer("left", torch.empty(contexts))
        #: `(c,)` c(h) of each node.
        self.register_buffer("seen", torch.empty(contexts))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget everything: all tokens are equally likely."""
        nn.init.constant_(self.keys, _UNKNOWN)
        nn.init.constant_(self.first, 1 / self.vocab_size)
        nn.init.constant_(self.left, 1)
        for tensor in (self.shares, self.seen):
            nn.init.zeros_(tensor)

    @property
    def order(self) -> int:
        """Number of tokens of the longest n-grams."""
        return len(self.sizes) + 1

    @property
    def before(self) -> int:
        """Number of tokens before a target that its n-grams reach."""
        return len(self.sizes)

    def contexts(self, ids: Int[Tensor, "b t"], document_ids: Int[Tensor, "b t"] | None = None) -> Int[Tensor, "b t c"]:
        """Return the nodes of the last 1 to `before` tokens at each position, below 0 for what was never seen.

        Args:
            ids: Token ids, the first ones without what came before; `NOTHING` where there is no token.
            document_ids: Numbers of packed documents.
        """
        found = [torch.where(ids == NOTHING, _UNKNOWN, ids)]
        begins = None
        if document_ids is not None:
            begins = nn.functional.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
        for _ in range(self.before - 1):
            above = nn.functional.pad(found[-1], (1, 0), value=_UNKNOWN)[:, :-1]
            above = above if begins is None else above.masked_fill(begins, _UNKNOWN)
            found.append(self._below(above, ids))
        return torch.stack(found[: self.before], -1) if self.before else ids.new_zeros(*ids.shape, 0)

    def probabilities(self, contexts: Int[Tensor, "*n c"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the probability of a token after each context, float32."""
        found = self.first[targets].float()
        for nodes in contexts.unbind(-1):
            gram = self._below(nodes, targets) - self.vocab_size
            share = torch.where(gram >= 0, self.shares[gram.clamp_min(0)].float(), 0.0)
            found = share + self._of(self.left, nodes, 1.0) * found
        return found

    def distributions(self, contexts: Int[Tensor, "n c"]) -> Float[Tensor, "n v"]:
        """Return the probabilities of all tokens after each context, float32."""
        if exporting():
            # How many n-grams go on from a context would be a size that depends on values.
            every = torch.arange(self.vocab_size, device=contexts.device)
            shape = (contexts.shape[0], self.vocab_size)
            return self.probabilities(contexts.unsqueeze(1).expand(*shape, -1), every.expand(shape))
        found = self.first.float().expand(len(contexts), -1)
        for nodes in contexts.unbind(-1):
            found = found * self._of(self.left, nodes, 1.0).unsqueeze(-1)
            start, stop = (
                torch.searchsorted(self.keys, edge.clamp_min(0) * self.vocab_size) for edge in (nodes, nodes + 1)
            )
            count = torch.where(nodes >= 0, stop - start, 0)
            row = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
            gram = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row] + start[row]
            found = found.index_put(
                (row, self.keys[gram] % self.vocab_size), self.shares[gram].float(), accumulate=True
            )
        return found

    def reliability(self, contexts: Int[Tensor, "*n c"]) -> Float[Tensor, "*n f"]:
        """Reliability of the counts of each context, f = 2 * before: ln(1 + c(h)), and γ(h), of each length.

        Together they tell which contexts were seen, how often, and how many different tokens followed.
        """
        return torch.cat((self._of(self.seen, contexts, 0.0).log1p(), self._of(self.left, contexts, 1.0)), -1)

    def _below(self, nodes: Int[Tensor, "*n"], tokens: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the nodes of the n-grams that go on from `nodes` with `tokens`, below 0 for what was never seen."""
        if not len(self.keys):
            return torch.full_like(nodes, _UNKNOWN)
        wanted = torch.where((nodes < 0) | (tokens < 0), _UNKNOWN - 1, nodes * self.vocab_size + tokens)
        place = _ranks(self.keys, wanted).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place] == wanted, place + self.vocab_size, _UNKNOWN)

    @staticmethod
    def _of(table: Tensor, nodes: Int[Tensor, "*n"], unknown: float) -> Float[Tensor, "*n"]:
        return torch.where(nodes >= 0, table[nodes.clamp_min(0)].float(), unknown)


def _ranks(keys: Int[Tensor, " g"], wanted: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Number of keys, in increasing order, below each wanted one."""
    if not exporting():
        return torch.searchsorted(keys, wanted)
    # ONNX has no such operator: a bisection, one step for each binary digit.
    below = torch.zeros_like(wanted)
    for digit in reversed(range(len(keys).bit_length())):
        further = below + (1 << digit)
        inside = further <= len(keys)
        smaller = keys[(further - 1).clamp_max(len(keys) - 1)] < wanted
        below = torch.where(inside & smaller, further, below)
    return below
