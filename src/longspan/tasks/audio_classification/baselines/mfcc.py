"""Mean cepstral coefficients: `Mfcc`."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from longspan.tasks.audio_classification.baselines._recordings import Candidate, RecordingBaseline, Recordings
from longspan.tasks.base.baselines.bags import decisions

#: Coefficients of each frame, the first of which is its level.
COEFFICIENTS = 20
#: Inverse weights of the squared norm that validation chooses from.
STRENGTHS = (0.01, 0.1, 1.0, 10.0)


class Mfcc(RecordingBaseline):
    """Means and deviations of mel-frequency cepstral coefficients with logistic regression."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn", "scipy")

    def candidates(self, recordings: Recordings, seed: int) -> Iterator[Candidate]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        features = {name: np.stack(list(map(summary, frames))) for name, frames in recordings.frames.items()}
        scaler = StandardScaler().fit(features["train"])
        scaled = {name: scaler.transform(matrix) for name, matrix in features.items()}
        truth, classes = recordings.targets["train"].numpy(), recordings.config.num_labels
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000, random_state=seed)
            found = decisions(model, scaled, truth)
            logits = {name: _of_all_classes(values) for name, values in found.items()}
            yield Candidate({"C": strength}, logits, classes * (scaled["train"].shape[1] + 1))


def summary(frames: np.ndarray) -> np.ndarray:
    """Return means and deviations of the coefficients of frames (t, bands), (2 * coefficients,)."""
    from scipy.fft import dct

    coefficients = dct(frames, axis=1, norm="ortho")[:, :COEFFICIENTS]
    return np.concatenate([coefficients.mean(0), coefficients.std(0)])


def _of_all_classes(values: np.ndarray) -> torch.Tensor:
    """Return logits (n, c); of two classes, scikit-learn has one."""
    found = torch.from_numpy(np.asarray(values, np.float64))
    return torch.stack([torch.zeros_like(found), found], -1) if found.ndim == 1 else found
