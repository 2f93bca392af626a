"""The n-grams that documents have, as numbers: `Bags`."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from torch import Tensor
from torch.nn.functional import embedding_bag

from longspan.data.batches.streams import Stream, pad
from longspan.data.text.long_documents import token_arrays
from longspan.training.lengths import scoring_batches

_BATCH_TOKENS = 65_536

Count = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_TOKENS = {"input_ids": Stream(mask="attention_mask")}


def batches(documents: Dataset, what: str) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
    """Yield rows, token ids (b, t) and masks (b, t) of all documents; a progress bar says `what` is done."""
    rows = token_arrays(documents)
    for batch in tqdm(list(scoring_batches(documents["length"][:], len(rows), _BATCH_TOKENS)), desc=what, leave=False):
        padded = pad([{"input_ids": rows[row]} for row in batch], _TOKENS)
        yield batch, padded["input_ids"], padded["attention_mask"].bool()


@dataclass(frozen=True)
class Bags:
    """The different n-grams that documents have.

    Attributes:
        grams: `(m,)` int32 numbers of n-grams, one document after the other.
        amounts: `(m,)` float32 how much of each the document has, such as how often.
        counts: `(n,)` how many each document has.
        size: The numbers are below this.
    """

    grams: np.ndarray
    amounts: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def of(cls, documents: Dataset, count: Count, size: int) -> Self:
        """N-grams of documents with the columns `input_ids` and `length`, and how often each document has them.

        Args:
            documents: The documents.
            count: Maps token ids and mask, `(b, t)`, to numbers `(b, g)` below `size`, and how often there is each.
            size: Number of values.
        """
        counts, parts = np.zeros(len(documents), np.int64), []
        for batch, ids, mask in batches(documents, "Counting n-grams"):
            found, times = (tensor.int().numpy() for tensor in count(ids, mask))
            there = times > 0
            counts[batch] = there.sum(1)
            parts.append((batch, found[there], times[there]))
        starts = np.cumsum(counts) - counts
        grams, amounts = np.empty(counts.sum(), np.int32), np.empty(counts.sum(), np.float32)
        for batch, found, times in parts:
            # Batches are of documents of similar length, from anywhere.
            sizes = counts[batch]
            places = np.repeat(starts[batch] - np.cumsum(sizes) + sizes, sizes) + np.arange(len(found))
            grams[places], amounts[places] = found, times
        return cls(grams, amounts, counts, size)

    @classmethod
    def dense(cls, values: np.ndarray) -> Self:
        """Documents that all have the same `k` n-grams, with amounts `(n, k)`."""
        rows, size = values.shape
        grams = np.tile(np.arange(size, dtype=np.int32), rows)
        return cls(grams, values.astype(np.float32).ravel(), np.full(rows, size), size)

    def part(self, which: np.ndarray) -> "Bags":
        """The documents for which `which`, `(n,)`, is true."""
        inside = np.repeat(which, self.counts)
        return Bags(self.grams[inside], self.amounts[inside], self.counts[which], self.size)

    def first_copies(self) -> np.ndarray:
        """Return for each document the number of the first one with the same n-grams as often, `(n,)`."""
        ends = np.cumsum(self.counts)
        first: dict[bytes, int] = {}
        found = np.empty(len(self.counts), np.int64)
        for number, (start, end) in enumerate(zip(ends - self.counts, ends, strict=True)):
            order = np.argsort(self.grams[start:end])
            parts = self.grams[start:end][order], self.amounts[start:end][order]
            key = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
            found[number] = first.setdefault(key, number)
        return found

    def among(self, wanted: np.ndarray) -> "Bags":
        """The documents with only the n-grams for which `wanted`, `(size,)`, is true."""
        return self.where(wanted[self.grams])

    def placed(self, keys: np.ndarray) -> "Bags":
        """The documents with only the n-grams that have a place in a hash table: `keys`, `(p,)`, at grams modulo p."""
        places = self.grams % np.int32(len(keys))
        return replace(self, grams=places, size=len(keys)).where(keys[places] == self.grams)

    def presence(self) -> "Bags":
        """Return the same n-grams, of which each document has 1."""
        return replace(self, amounts=np.ones_like(self.amounts))

    def tfidf(self, idf: np.ndarray) -> "Bags":
        """Return each document's vector of length 1, (1 + ln amount) idf; `idf` is `(size,)`."""
        amounts = (1 + np.log(self.amounts)) * idf[self.grams]
        squares = np.bincount(self._documents(), amounts**2, len(self.counts))
        return replace(self, amounts=(amounts / np.repeat(np.sqrt(squares) + 1e-12, self.counts)).astype(np.float32))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Return for each document the sum of amounts times weights `(size, c)` of its n-grams, `(n, c)` float32."""
        starts = torch.from_numpy(np.cumsum(self.counts) - self.counts).int()
        table, amounts = torch.from_numpy(weights.astype(np.float32)), torch.from_numpy(self.amounts)
        grams = torch.from_numpy(self.grams)
        found: np.ndarray = embedding_bag(grams, table, starts, mode="sum", per_sample_weights=amounts).numpy()
        return found

    def totals(self, values: np.ndarray) -> np.ndarray:
        """Return for each n-gram the sum of the documents' values `(n, c)` times amounts, `(size, c)` float64."""
        columns = [
            np.bincount(self.grams, np.repeat(column, self.counts) * self.amounts, self.size) for column in values.T
        ]
        return np.stack(columns, -1)

    def where(self, inside: np.ndarray) -> "Bags":
        """The same documents with only the n-grams for which `inside`, `(m,)`, is true."""
        before = np.concatenate([[0], np.cumsum(inside)])
        ends = np.cumsum(self.counts)
        counts = before[ends] - before[ends - self.counts]
        return Bags(self.grams[inside], self.amounts[inside], counts, self.size)

    def _documents(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.counts)), self.counts)
