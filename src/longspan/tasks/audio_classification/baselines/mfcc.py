"""Mean cepstral coefficients: `Mfcc`."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from longspan.tasks.audio_classification.baselines._recordings import RecordingBaseline, Recordings
from longspan.tasks.base.baselines.bags import Candidate
from longspan.tasks.base.linear import fit_standardised

#: Coefficients of each frame, the first of which is its level.
COEFFICIENTS = 20


class Mfcc(RecordingBaseline):
    """Means and deviations of mel-frequency cepstral coefficients with logistic regression."""

    packages: ClassVar[tuple[str, ...]] = ("scipy",)

    def candidates(self, recordings: Recordings, seed: int) -> Iterator[Candidate]:
        features = {
            name: torch.from_numpy(np.stack(list(map(summary, frames)))).float()
            for name, frames in recordings.frames.items()
        }
        model = fit_standardised(features, recordings.targets, recordings.config.num_labels)
        logits = {name: rows @ model.weight + model.bias for name, rows in features.items() if name != "train"}
        yield Candidate({"penalty": model.penalty}, logits, model.weight.numel() + model.bias.numel())


def summary(frames: np.ndarray) -> np.ndarray:
    """Return means and deviations of the coefficients of frames (t, bands), (2 * coefficients,)."""
    from scipy.fft import dct

    coefficients = dct(frames, axis=1, norm="ortho")[:, :COEFFICIENTS]
    return np.concatenate([coefficients.mean(0), coefficients.std(0)])
