"""Training of models that translate: `TranslationTrainer`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.text.pairs import PairProcessor
from longspan.tasks.translation.scores import TranslationScores, translation_scores
from longspan.tasks.translation.translating import Search, search, target_losses
from longspan.training.lengths import LengthTrainer, scoring_batches


class TranslationTrainer(LengthTrainer[TranslationScores]):
    """A `LengthTrainer` that batches by the lengths of sources and targets, and scores translations.

    During training, the loss is that of the whole validation split, and BLEU and chrF are those of greedy translations
    of `translated_examples` of it, evenly spaced. Final scores are of all examples, translated with beams.

    Args:
        reader: what makes text of tokens.
        how: the search of the final scores.
        translated_examples: number of validation examples that are translated during training.
        kwargs: arguments of `LengthTrainer`. Data sets also have `target_length` and `target`, the text.
    """

    def __init__(self, *args: Any, reader: PairProcessor, how: Search, translated_examples: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reader, self.how, self.translated_examples = reader, how, translated_examples
        self._finished = False

    def lengths(self, dataset: Dataset) -> np.ndarray:
        return pair_lengths(dataset)

    def per_token_columns(self) -> Sequence[str]:
        # Half of a source has no translation.
        return ()

    def validation_sizes(self) -> np.ndarray:
        return self.lengths(self.eval_dataset).sum(1)

    def score(self, dataset: Dataset) -> TranslationScores:
        if dataset is self.eval_dataset and not self._finished:
            return self._quick_scores(dataset, self.translated_examples)
        return self._scores(dataset, dataset, self.how, intervals=True)

    def rehearse(self, dataset: Dataset) -> None:
        share = len(dataset) * min(1.0, self.translated_examples / len(self.eval_dataset))
        self._quick_scores(dataset, max(1, round(share)))

    def validation_scores(self) -> TranslationScores:
        # Those during training are of a part.
        self._finished = True
        self.scored.pop(self.kept_step(), None)
        return super().validation_scores()

    def _quick_scores(self, dataset: Dataset, most: int) -> TranslationScores:
        count = min(len(dataset), most)
        some = dataset.select((np.arange(count) * len(dataset) / count).astype(int))
        return self._scores(dataset, some, replace(self.how, beams=1), intervals=False)

    def _scores(self, dataset: Dataset, some: Dataset, how: Search, *, intervals: bool) -> TranslationScores:
        """Return the loss of a data set, and the scores of translations of some of it."""
        shown = not self.args.disable_tqdm and self.is_world_process_zero()
        losses = target_losses(
            self.model,
            self.rows(dataset, [*self.streams]),
            scoring_batches(self.lengths(dataset), self.args.eval_batch_size, self.batch_tokens),
            self.streams,
            progress=shown,
            after_batch=self._scored_a_batch,
        ).sum(0)
        stream = self.streams["input_ids"]
        found = search(self.model, some["input_ids"][:], how, stream, progress=shown, after_batch=self._scored_a_batch)
        texts = self.reader.texts([best[0] for best in found])
        loss = float(losses[0] / losses[1])
        return translation_scores(texts, some["target"][:], loss=loss, intervals=intervals)


def pair_lengths(dataset: Dataset) -> np.ndarray:
    """Return the lengths of sources and targets, (n, 2)."""
    return np.stack([np.asarray(dataset[name][:]) for name in ("length", "target_length")], 1)
