"""Training recordings that are changed again in each epoch: `AugmentedRecordings`."""

from typing import Any

import numpy as np

from longspan.data.batches.drawn import AugmentedExamples, Index
from longspan.data.signals.decoding import samples
from longspan.data.signals.options import RecordingData
from longspan.data.signals.processor import RecordingProcessor


class AugmentedRecordings(AugmentedExamples):
    """Recordings as frames. They are decoded again in each epoch."""

    processor: RecordingProcessor
    data: RecordingData

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        row = self.rows[index[1]]
        sound = samples(row["recording"], self.processor.sample_rate)
        frames = self.processor.augmented(sound, self.change, random, self.data.max_length)
        return {"labels": row["labels"], **frames}
