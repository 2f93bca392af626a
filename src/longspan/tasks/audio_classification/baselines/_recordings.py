"""The recordings of a recipe as log-mel frames."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from longspan.data.signals.decoding import samples
from longspan.data.signals.processor import RecordingProcessor
from longspan.models import LongspanConfig
from longspan.tasks.base.baselines.bags import ChosenBaseline, targets_of
from longspan.tasks.base.classes import ClassificationScores, ClassTask
from longspan.tasks.base.task import Recipe, check_validation


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


class RecordingBaseline(ChosenBaseline[ClassificationScores]):
    """A classifier of log-mel frames, with settings chosen by the validation split."""

    def read(self, recipe: Recipe) -> Recordings:
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
        return Recordings(frames, targets_of(task, splits, config), config)
