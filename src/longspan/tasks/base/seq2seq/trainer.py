"""Training of encoder-decoder models: `PairTrainer`, and `TargetTrainer` where texts are written for scores."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.by_length import padding_fraction
from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.data.text.bpe_dropout import BpeDropout
from longspan.data.text.pairs import PairProcessor
from longspan.data.text.tokenization import special_tokens
from longspan.results.scores import S
from longspan.tasks.base.seq2seq.search import Search, pair_lengths, search, target_losses
from longspan.training.lengths import LengthTrainer

_MEASURED = 1000
"""Number of pairs whose drawn lengths are measured."""


class DrawnPairs(DrawnExamples[dict[str, Any]]):
    """Pairs with a segmentation that is drawn again in each epoch.

    Args:
        pairs: `input_ids` and `labels`, the ordinary tokens, and `source` and `target`, the texts.
        processor: Processor that made these tokens.
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
        """Factors by which drawn sources and targets have more tokens, (2,)."""
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


class PairTrainer(LengthTrainer[S]):
    """A `LengthTrainer` that batches by the lengths of sources and targets.

    Args:
        kwargs: arguments of `LengthTrainer`. Data sets also have `target_length`.
    """

    def lengths(self, dataset: Dataset) -> np.ndarray:
        return pair_lengths(dataset)

    def per_token_columns(self) -> Sequence[str]:
        # Half of a source has no target.
        return ()

    def loss_parts(self, dataset: Dataset) -> tuple[float, float]:
        """Return the nats of all targets of a data set, and how many tokens they have. All processes share the work."""
        losses = target_losses(
            self.model,
            self.rows(dataset, [*self.streams]),
            **self.scoring(dataset),
        ).sum(0)
        return float(losses[0]), float(losses[1])


class TargetTrainer(PairTrainer[S]):
    """A `PairTrainer` that scores what the model writes.

    During training, the loss is that of the whole validation split, and the other scores are those of greedy search for
    `searched_examples` of it, evenly spaced. Final scores are of all examples, searched for with beams.

    Args:
        reader: what makes text of tokens.
        how: the search of the final scores.
        searched_examples: number of validation examples that are searched for during training.
        least: quantiles of the lengths of training targets. Of these lengths and 0, the one with the best scores of
            those examples is the minimum length of what is written, and the model's `generation_config` keeps it.
        scored: scores texts of the rows of a data set, given their loss and whether to compute intervals.
        drawn: draws other tokens of training pairs in each epoch; None for the same ones. Batches are then made by the
            mean lengths of drawn pairs.
        kwargs: arguments of `PairTrainer`. Data sets also have what `scored` reads.
    """

    drawn: DrawnPairs | None
    scores_again = True

    def __init__(
        self,
        *args: Any,
        reader: PairProcessor,
        how: Search,
        searched_examples: int,
        scored: Callable[[Dataset, Sequence[str], float, bool], S],
        least: Sequence[float] = (),
        drawn: DrawnPairs | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, drawn=drawn, **kwargs)
        self.reader, self.how, self.searched_examples, self.scored_by = reader, how, searched_examples, scored
        self.least = least
        self._growth = np.ones(2) if drawn is None else drawn.growth()
        self._finished = False

    def lengths(self, dataset: Dataset) -> np.ndarray:
        lengths = super().lengths(dataset)
        # Drawn segmentations have more tokens.
        return np.ceil(lengths * self._growth).astype(np.int64) if dataset is self.train_dataset else lengths

    def padding_fraction(self) -> float:
        if self.drawn is None:
            return super().padding_fraction()
        return self.drawn.padding_fraction([*self._training_batches(self.args.process_index)])

    def score(self, dataset: Dataset) -> S:
        if dataset is self.eval_dataset and not self._finished:
            return self._quick_scores(dataset, self.searched_examples)
        return self._scores(dataset, dataset, self.how, intervals=True)

    def rehearse(self, dataset: Dataset) -> None:
        share = len(dataset) * min(1.0, self.searched_examples / len(self.eval_dataset))
        self._quick_scores(dataset, max(1, round(share)))

    def rehearse_final(self, dataset: Dataset) -> None:
        self._scores(dataset, dataset, self.how, intervals=True)

    def validation_scores(self) -> S:
        # Those during training are of a part.
        self._finished = True
        self.scored.pop(self.kept_step(), None)
        if self.least:
            least = self._best_least()
            self.how = replace(self.how, least=least)
            self.model.generation_config.min_new_tokens = least
        return super().validation_scores()

    def _best_least(self) -> int:
        """Minimum length with the best scores of some validation examples; the lowest of equal ones."""
        some = _spaced(self.eval_dataset, self.searched_examples)

        def value(least: int) -> float:
            how = replace(self.how, beams=1, least=least)
            found = search(self.model, some["input_ids"][:], how, self.streams, after_batch=self._scored_a_batch)
            scores = self.scored_by(some, self.reader.texts([best[0] for best in found.targets]), 0.0, False)
            score = scores.headline()
            return float(getattr(scores, score)) * (1 if scores.higher_is_better(score) else -1)

        # Lengths count the end.
        lengths = np.quantile(pair_lengths(self.train_dataset)[:, 1] - 1, self.least).astype(int)
        return max(sorted({0, *lengths.tolist()}), key=value)

    def _quick_scores(self, dataset: Dataset, most: int) -> S:
        return self._scores(dataset, _spaced(dataset, most), replace(self.how, beams=1), intervals=False)

    def _scores(self, dataset: Dataset, some: Dataset, how: Search, *, intervals: bool) -> S:
        """Return the loss of a data set, and the scores of what the model writes for some of it."""
        labels = dataset["labels"][:] if some is dataset else None
        found = search(self.model, some["input_ids"][:], how, self.streams, references=labels, **self.reporting())
        nats, tokens = self.loss_parts(dataset) if labels is None else found.references.sum(0).tolist()
        texts = self.reader.texts([best[0] for best in found.targets])
        return self.scored_by(some, texts, nats / tokens, intervals)


def _spaced(dataset: Dataset, most: int) -> Dataset:
    """At most so many examples, evenly spaced."""
    count = min(len(dataset), most)
    return dataset.select((np.arange(count) * len(dataset) / count).astype(int))
