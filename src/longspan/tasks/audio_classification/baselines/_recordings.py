"""The recordings of a recipe as log-mel frames, and the choice among models by the validation split."""

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.data.signals.decoding import samples
from longspan.data.signals.processor import RecordingProcessor
from longspan.models import LongspanConfig
from longspan.tasks.base.classes import ClassificationScores, ClassTask
from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation


@dataclass(frozen=True)
class Recordings:
    """Recordings by split.

    Attributes:
        frames: For each recording (t, bands) logarithms of power, not normalised.
        targets: `(n,)` class numbers.
        config: The configuration of a model for them.
    """

    frames: Mapping[str, list[np.ndarray]]
    targets: Mapping[str, Tensor]
    config: LongspanConfig


@dataclass(frozen=True)
class Candidate:
    """A fitted model.

    Attributes:
        chosen: Its settings, as JSON.
        logits: `(n, c)` by split, for those that are held out.
        parameters: Number of learned parameters.
    """

    chosen: dict[str, Any]
    logits: dict[str, Tensor]
    parameters: int


class RecordingBaseline(Baseline[ClassificationScores]):
    """A classifier of log-mel frames, with settings chosen by the validation split."""

    @abc.abstractmethod
    def candidates(self, recordings: Recordings, seed: int) -> Iterator[Candidate]:
        """Yield models that were fitted on the training recordings."""

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        task, recordings = recipe.task, read_recordings(recipe)
        assert isinstance(task, ClassTask)
        config, targets = recordings.config, recordings.targets

        def rank(candidate: Candidate) -> tuple[float, float]:
            scores = task.score(candidate.logits["validation"], targets["validation"], config)
            return scores.accuracy, -scores.loss

        best = max(self.candidates(recordings, recipe.training["seed"]), key=rank)
        scores = {split: task.score(logits, targets[split], config) for split, logits in best.logits.items()}
        return Fitted(scores, best.chosen, best.parameters)


def read_recordings(recipe: Recipe) -> Recordings:
    """Return the recordings of a recipe. Raises UserError for whatever is wrong with them."""
    task, data = recipe.task, replace(recipe.data, features="mel")
    assert isinstance(task, ClassTask)
    splits = task.load(data).splits
    check_validation(splits)
    config = task.configure({}, task.head(splits["train"], data))
    processor = RecordingProcessor.learned(splits["train"], data)
    extractor, most = processor.extractor, data.max_length or None
    frames = {
        name: [extractor.frames(samples(one, processor.sample_rate))[:most] for one in split["recording"]]
        for name, split in splits.items()
    }
    numbers = {name: number for number, name in config.id2label.items()}
    targets = {name: torch.tensor([numbers[label] for label in split["label"]]) for name, split in splits.items()}
    return Recordings(frames, targets, config)
