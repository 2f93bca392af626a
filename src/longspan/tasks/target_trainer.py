"""Training of encoder-decoder models: `PairTrainer`, and `TargetTrainer` where texts are written for scores."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.text.pairs import PairProcessor
from longspan.results.scores import S
from longspan.tasks.drawn_pairs import DrawnPairs
from longspan.tasks.target_search import Search, pair_lengths, search, target_losses
from longspan.training.lengths import LengthTrainer, scoring_batches


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
            scoring_batches(self.lengths(dataset), self.args.eval_batch_size, self.batch_tokens),
            self.streams,
            progress=self.shown(),
            after_batch=self._scored_a_batch,
        ).sum(0)
        return float(losses[0]), float(losses[1])

    def shown(self) -> bool:
        """Return whether this process shows progress bars."""
        return bool(not self.args.disable_tqdm and self.is_world_process_zero())


class TargetTrainer(PairTrainer[S]):
    """A `PairTrainer` that scores what the model writes.

    During training, the loss is that of the whole validation split, and the other scores are those of greedy search for
    `searched_examples` of it, evenly spaced. Final scores are of all examples, searched for with beams.

    Args:
        reader: what makes text of tokens.
        how: the search of the final scores.
        searched_examples: number of validation examples that are searched for during training.
        scored: scores texts of the rows of a data set, given their loss and whether to compute intervals.
        drawn: draws other tokens of training pairs in each epoch; None for the same ones. Batches are then made by the
            mean lengths of drawn pairs.
        kwargs: arguments of `PairTrainer`. Data sets also have what `scored` reads.
    """

    drawn: DrawnPairs | None

    def __init__(
        self,
        *args: Any,
        reader: PairProcessor,
        how: Search,
        searched_examples: int,
        scored: Callable[[Dataset, Sequence[str], float, bool], S],
        drawn: DrawnPairs | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, drawn=drawn, **kwargs)
        self.reader, self.how, self.searched_examples, self.scored_by = reader, how, searched_examples, scored
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

    def validation_scores(self) -> S:
        # Those during training are of a part.
        self._finished = True
        self.scored.pop(self.kept_step(), None)
        return super().validation_scores()

    def _quick_scores(self, dataset: Dataset, most: int) -> S:
        count = min(len(dataset), most)
        some = dataset.select((np.arange(count) * len(dataset) / count).astype(int))
        return self._scores(dataset, some, replace(self.how, beams=1), intervals=False)

    def _scores(self, dataset: Dataset, some: Dataset, how: Search, *, intervals: bool) -> S:
        """Return the loss of a data set, and the scores of what the model writes for some of it."""
        nats, tokens = self.loss_parts(dataset)
        sources = some["input_ids"][:]
        found = search(self.model, sources, how, self.streams, progress=self.shown(), after_batch=self._scored_a_batch)
        texts = self.reader.texts([best[0] for best in found])
        return self.scored_by(some, texts, nats / tokens, intervals)
