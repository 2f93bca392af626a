"""Training pairs whose tokens are drawn again in each epoch: `DrawnPairs`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.by_length import padding_fraction
from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.data.text.bpe_dropout import BpeDropout
from longspan.data.text.pairs import PairProcessor
from longspan.data.text.tokenization import special_tokens

_MEASURED = 1000
"""Number of pairs whose drawn lengths are measured."""


class DrawnPairs(DrawnExamples[dict[str, Any]]):
    """Pairs with a segmentation that is drawn again in each epoch.

    Args:
        pairs: `input_ids` and `labels`, the ordinary tokens, and `source` and `target`, the texts.
        processor: What made these tokens.
        rate: The share of merges that are left out, see `BpeDropout`.
        seed: Seed of the segmentations.
        most: Maximum number of tokens of sources and targets, end tokens included; None for any number. Where one drawn
            would be longer, the ordinary tokens are read.

    Raises:
        UserError: The tokenizer is not byte-level BPE.
    """

    def __init__(
        self, pairs: Dataset, processor: PairProcessor, rate: float, seed: int, most: Sequence[int | None]
    ) -> None:
        super().__init__(seed)
        self.pairs = pairs.select_columns(["input_ids", "labels", "source", "target"])
        self.most = most
        own, target = BpeDropout(processor.tokenizer, rate), BpeDropout(processor.target_tokenizer, rate)
        before, after = (ids.tolist() for ids in special_tokens(processor.tokenizer, 1))
        self._sides: Sequence[tuple[str, str, BpeDropout, list[int], list[int]]] = (
            ("input_ids", "source", own, before, after),
            ("labels", "target", target, [], [processor.target_tokenizer.eos_token_id]),
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        row, found = self.pairs[index[1]], {}
        for (name, text, drop, before, after), most in zip(self._sides, self.most, strict=True):
            ids = [*before, *drop(row[text] or "", random), *after]
            found[name] = row[name] if most is not None and len(ids) > most else ids
        return found

    def growth(self) -> np.ndarray:
        """Return how many times as many tokens drawn sources and targets have, (2,)."""
        rows = np.linspace(0, len(self) - 1, min(_MEASURED, len(self))).astype(int)
        ordinary = self.pairs[rows]
        before = np.array([[len(ids) for ids in ordinary[name]] for name, *_ in self._sides])
        growth: np.ndarray = self._lengths(rows).sum(0) / before.sum(1)
        return growth

    def padding_fraction(self, batches: Sequence[Sequence[int]]) -> float:
        """Return the share of padding, from 0 to 1, in batches of pairs as the first epoch draws them.

        Of many batches, some are drawn.
        """
        step = max(1, sum(map(len, batches)) // _MEASURED)
        some = [batch for batch in batches[::step] if batch]
        lengths = np.zeros((len(self), 2), dtype=np.int64)
        for batch in some:
            lengths[batch] = self._lengths(batch)
        return padding_fraction(some, lengths)

    def _lengths(self, rows: Any) -> np.ndarray:
        drawn = (self[0, int(row)] for row in rows)
        return np.array([[len(pair["input_ids"]), len(pair["labels"])] for pair in drawn])
