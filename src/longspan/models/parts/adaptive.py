"""Adaptive input embeddings and adaptive softmax: frequent tokens have wide vectors, rare ones narrow vectors."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.models.parts.losses import IGNORED, in_chunks
from longspan.ops.affine import weight_and_bias
from longspan.ops.execution import exporting
from longspan.ops.pooling import accumulation_dtype


class AdaptiveEmbedding(nn.Module):
    """Embeddings in clusters of tokens, numbered from the most frequent on, each with its own width.

    Cluster i contains the tokens from `cutoffs[i-1]` (or 0) up to but not including `cutoffs[i]` (or `vocab_size`). Its
    vectors have embedding_dim // div_val**i numbers and are mapped to `dim`.

    Parameters:
        tables.{i}.weight: (tokens of cluster i, embedding_dim // div_val**i).
        projections.{i}.weight: (dim, embedding_dim // div_val**i), without biases. With div_val=1 all clusters share
            projections.0, and missing when embedding_dim is dim.

    Source: Baevski & Auli 2019, "Adaptive Input Representations", https://arxiv.org/abs/1809.10853; with div_val=1 as
    Transformer-XL (Dai et al. 2019).

    Args:
        vocab_size: number of tokens.
        dim: width of the output.
        cutoffs: first token of each cluster but the first, increasing; empty for a single cluster.
        embedding_dim: width of the first cluster's vectors.
        div_val: factor by which each cluster's vectors are narrower than those of the previous cluster.
        padding_idx: a token whose vector stays zero, or None.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        cutoffs: Sequence[int],
        embedding_dim: int,
        div_val: int = 1,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        self.cutoffs = list(cutoffs)
        clusters = list(itertools.pairwise([0, *cutoffs, vocab_size]))
        widths = cluster_widths(embedding_dim, div_val, len(clusters))
        self.tables = nn.ModuleList()
        for (first, end), width in zip(clusters, widths, strict=True):
            padding = None if padding_idx is None or not first <= padding_idx < end else padding_idx - first
            self.tables.append(nn.Embedding(end - first, width, padding_idx=padding))
        projected = widths if div_val > 1 else widths[:1] if embedding_dim != dim else []
        self.projections = nn.ModuleList(nn.Linear(width, dim, bias=False) for width in projected)

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n d"]:
        flat = ids.flatten()
        cluster = _cluster(flat, self.cutoffs)
        if exporting():
            return self._of_all_clusters(flat, cluster).unflatten(0, ids.shape)
        vectors, places = [], []
        for number, (first, table) in enumerate(zip([0, *self.cutoffs], self.tables, strict=True)):
            # Also for an empty selection: every parameter has a gradient in every step, as distributed training needs.
            place = (cluster == number).nonzero().squeeze(1)
            vector = table(flat[place] - first)
            if self.projections:
                vector = self.projections[min(number, len(self.projections) - 1)](vector)
            vectors.append(vector)
            places.append(place)
        grouped = torch.cat(vectors)
        return torch.zeros_like(grouped).index_copy(0, torch.cat(places), grouped).unflatten(0, ids.shape)

    def _of_all_clusters(self, flat: Tensor, cluster: Tensor) -> Tensor:
        """Look each token up in every cluster: how many there are in each would be a size that depends on the data."""
        vectors = []
        for number, (first, table) in enumerate(zip([0, *self.cutoffs], self.tables, strict=True)):
            assert isinstance(table, nn.Embedding)
            vector = table((flat - first).clamp(0, table.num_embeddings - 1))
            if self.projections:
                vector = self.projections[min(number, len(self.projections) - 1)](vector)
            vectors.append(vector.masked_fill((cluster != number).unsqueeze(1), 0))
        return torch.stack(vectors).sum(0)


class AdaptiveSoftmax(nn.Module):
    """Softmax over clusters of tokens: the head chooses a frequent token or a cluster, and a cluster one of its tokens.

    Equations (first and end of cluster i as in `AdaptiveEmbedding`; P, W and b are its projection, output weights and
    output biases; without projections P hᵀ is h):
        head = log_softmax([W_0 P_0ᵀ h + b_0; W_c P_0ᵀ h + b_c])
        log p(w) = head[w] for w < cutoffs[0]
        log p(w) = head[cutoffs[0] + i - 1] + log_softmax(W_i P_iᵀ h + b_i)[w - cutoffs[i-1]] for w of cluster i >= 1

    So column cutoffs[0] + i - 1 of the head is the score of cluster i, as in the authors' TensorFlow code and in
    transformers. The authors' PyTorch code has these columns in reverse: flip the rows of `clusters` to load from it.

    Parameters:
        outputs.{i}.weight: (tokens of cluster i, embedding_dim // div_val**i), .bias: (tokens of cluster i).
        clusters.weight: (len(cutoffs), embedding_dim), .bias: (len(cutoffs)); absent without cutoffs.
        projections.{i}.weight: (dim, embedding_dim // div_val**i), one for each cluster; absent with div_val=1
            and embedding_dim = dim.
        `outputs` may be tied to `AdaptiveEmbedding.tables`, and projections to its `projections`.

    Source: Grave et al. 2017, "Efficient softmax approximation for GPUs", https://arxiv.org/abs/1609.04309

    Args:
        vocab_size, dim, cutoffs, embedding_dim, div_val: see `AdaptiveEmbedding`.
    """

    def __init__(
        self, vocab_size: int, dim: int, *, cutoffs: Sequence[int], embedding_dim: int, div_val: int = 1
    ) -> None:
        super().__init__()
        self.cutoffs = list(cutoffs)
        sizes = [end - first for first, end in itertools.pairwise([0, *cutoffs, vocab_size])]
        widths = cluster_widths(embedding_dim, div_val, len(sizes))
        self.outputs = nn.ModuleList(nn.Linear(width, size) for width, size in zip(widths, sizes, strict=True))
        self.clusters = nn.Linear(embedding_dim, len(cutoffs)) if cutoffs else None
        projected = widths if div_val > 1 or embedding_dim != dim else []
        # From narrow to wide, as in the embeddings, so that both can be tied; applied in the other direction.
        self.projections = nn.ModuleList(nn.Linear(width, dim, bias=False) for width in projected)
        # Number of tokens in the head, besides clusters, and largest number of scores of one position at a time.
        self.frequent = sizes[0]
        self.columns = max(self.frequent + len(cutoffs), *sizes)

    def nll(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return -log p(target) in nats, in the order of the targets; 0 where the target is IGNORED.

        The scores of a cluster are computed only for positions whose target is in it.
        """
        return in_chunks(self._nll, hidden, targets, self.columns)

    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Return log p of every token; as logits, they give the same softmax."""
        head = self._head(hidden)
        parts = [head[..., : self.frequent]]
        for number in range(1, len(self.outputs)):
            column = self.frequent + number - 1
            parts.append(head[..., column : column + 1] + _log_softmax(self._scores(number, hidden)))
        return torch.cat(parts, -1)

    def _nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        head = self._head(hidden)
        cluster = _cluster(targets, self.cutoffs)
        column = torch.where(cluster == 0, targets.clamp_min(0), self.frequent + cluster - 1)
        losses = -head.gather(1, column.unsqueeze(1)).squeeze(1)
        for number, start in enumerate(self.cutoffs, 1):
            place = (cluster == number).nonzero().squeeze(1)
            chosen = (targets[place] - start).unsqueeze(1)
            inside = _log_softmax(self._scores(number, hidden[place])).gather(1, chosen).squeeze(1)
            losses = losses.index_add(0, place, -inside)
        return losses.masked_fill(targets == IGNORED, 0)

    def _head(self, hidden: Tensor) -> Tensor:
        inner = self._inner(0, hidden)
        scores = self.outputs[0](inner)
        return _log_softmax(scores if self.clusters is None else torch.cat((scores, self.clusters(inner)), -1))

    def _scores(self, number: int, hidden: Tensor) -> Tensor:
        scores: Tensor = self.outputs[number](self._inner(number, hidden))
        return scores

    def _inner(self, number: int, hidden: Tensor) -> Tensor:
        if not self.projections:
            return hidden
        weight, _ = weight_and_bias(self.projections[number])
        return hidden @ weight


def cluster_widths(embedding_dim: int, div_val: int, clusters: int) -> list[int]:
    """Return the width of each cluster's vectors."""
    return [embedding_dim // div_val**number for number in range(clusters)]


def _cluster(tokens: Tensor, cutoffs: Sequence[int]) -> Tensor:
    """Return the number of each token's cluster; 0 for numbers below 0."""
    return torch.bucketize(tokens, torch.tensor(cutoffs, dtype=tokens.dtype, device=tokens.device), right=True)


def _log_softmax(scores: Tensor) -> Tensor:
    return scores.to(accumulation_dtype(scores.dtype)).log_softmax(-1)
