"""Cepstral coefficients of a frame and its neighbours: `Mfcc`."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from longspan.tasks.base.classes import labels
from longspan.tasks.base.examples import ProcessedTask
from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation
from longspan.tasks.frame_labelling.processor import FrameProcessor, classes_at
from longspan.tasks.frame_labelling.scores import FrameScores
from longspan.tasks.frame_labelling.trainer import Scored, best_penalty, smoothed_scores

#: Coefficients of each frame, the first of which is its level.
COEFFICIENTS = 20
#: Neighbours of a frame that are read with it, in frames.
OFFSETS = (-12, -9, -6, -3, 0, 3, 6, 9, 12)
#: Inverse weights of the squared norm that validation chooses from.
STRENGTHS = (0.01, 1.0)
#: Training frames at most, drawn at random.
MOST = 50_000


class Mfcc(Baseline[FrameScores]):
    """Cepstral coefficients of a frame and eight neighbours with logistic regression, smoothed like a model."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn", "scipy")

    def fit(self, recipe: Recipe) -> Fitted[FrameScores]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        task, data = recipe.task, replace(recipe.data, features="mel")
        assert isinstance(task, ProcessedTask)
        splits = task.load(data).splits
        check_validation(splits)
        config = task.configure({}, task.head(splits["train"], data))
        processor, names = FrameProcessor.learned(splits["train"], data), labels(config)
        assert isinstance(processor, FrameProcessor)
        numbers = {name: number for number, name in enumerate(names)}
        rows = {name: [_of_row(row, processor, numbers) for row in split] for name, split in splits.items()}
        random = np.random.default_rng(recipe.training["seed"])
        classes = np.concatenate([one for _, one in rows["train"]])
        inputs = np.concatenate([coefficients for coefficients, _ in rows["train"]])
        chosen = np.sort(random.permutation(len(classes))[:MOST])
        scaler = StandardScaler().fit(inputs[chosen])
        tried = []
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=300, random_state=recipe.training["seed"])
            model.fit(scaler.transform(inputs[chosen]), classes[chosen])
            scored = [_scored(model, scaler, row, len(names)) for row in rows["validation"]]
            penalty, scores = best_penalty(scored, names, 1)
            tried.append(((scores.accuracy, -scores.segment_error), model, strength, penalty))
        _, model, strength, penalty = max(tried, key=lambda one: one[0])
        found = {
            name: smoothed_scores((_scored(model, scaler, row, len(names)) for row in some), [penalty], names, 1)[0]
            for name, some in rows.items()
            if name != "train"
        }
        size = len(names) * (COEFFICIENTS * len(OFFSETS) + 1)
        return Fitted(found, {"C": strength, "penalty": penalty}, size)


def _of_row(row: dict[str, Any], processor: FrameProcessor, numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of a recording's frames, (t, offsets * coefficients), and their classes, (t,)."""
    frames = processor.frames(row["recording"], row["segments"])
    times = np.arange(len(frames)) * processor.hop + processor.middle
    return with_neighbours(frames), classes_at(times, row["segments"], numbers)


def with_neighbours(frames: np.ndarray) -> np.ndarray:
    """Return the coefficients of frames (t, bands) and their neighbours, (t, offsets * coefficients) float32.

    Coefficients have mean 0 in a recording. Before its beginning is its first frame, after its end its last one.
    """
    from scipy.fft import dct

    coefficients = dct(frames, axis=1, norm="ortho")[:, :COEFFICIENTS].astype(np.float32)
    coefficients -= coefficients.mean(0)
    places = np.arange(len(frames))[:, None] + np.array(OFFSETS)
    return coefficients[places.clip(0, len(frames) - 1)].reshape(len(frames), -1)


def _scored(model: Any, scaler: Any, row: tuple[np.ndarray, np.ndarray], classes: int) -> Scored:
    """Return the classes of a recording's frames, and the log-probabilities of all classes."""
    inputs, right = row
    scores = np.full((len(right), classes), -np.inf)
    # A label may be too short for any frame to have it.
    scores[:, model.classes_] = model.predict_log_proba(scaler.transform(inputs))
    return right, scores.astype(np.float32)
