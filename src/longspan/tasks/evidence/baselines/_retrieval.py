"""Shared parts of baselines that rank a document's parts by their similarity to a question."""

import abc
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.tasks.base.baselines.retrieval import smoothed
from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores


class Retrieval(Baseline[EvidenceScores]):
    """A score for each part of a document and each question, that nothing is learned for.

    The validation split chooses two numbers: the standard deviation, in parts, of the Gaussian that averages
    neighbouring scores, and the threshold, in standard deviations above a document's mean.
    """

    #: Settings that validation chooses from; 0 leaves each part its own score.
    spreads: ClassVar[tuple[float, ...]] = (0.0,)

    @abc.abstractmethod
    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        """Return `(q, p)`, higher where a part is likelier to answer."""

    def fit(self, recipe: Recipe) -> Fitted[EvidenceScores]:
        task = recipe.task
        splits = task.load(recipe.data).splits  # type: ignore[attr-defined]
        check_validation(splits)
        found: dict[str, list[np.ndarray]] = {}
        gold: dict[str, list[np.ndarray]] = {}
        for name in [name for name in splits if name != "train"]:
            found[name], gold[name] = [], []
            for number, row in enumerate(splits[name]):
                found[name] += list(self.scores(row["parts"], row["questions"], recipe.training["seed"] + number))
                places = np.arange(len(row["parts"]))
                gold[name] += [np.isin(places, numbers) for numbers in row["evidence"]]
        tried = {spread: _ranked(found["validation"], spread) for spread in self.spreads}
        measured = {spread: evidence_scores(rows, gold["validation"]) for spread, rows in tried.items()}
        best = max(measured, key=lambda spread: measured[spread].recall_at_sixth)
        threshold = measured[best].threshold
        scored = {name: evidence_scores(_ranked(rows, best), gold[name], threshold) for name, rows in found.items()}
        chosen = {"spread": best} if len(self.spreads) > 1 else {}
        return Fitted(scored, {**chosen, "threshold": round(threshold, 3)}, 0)


def _ranked(rows: Sequence[np.ndarray], spread: float) -> list[np.ndarray]:
    """Return scores averaged with their neighbours', with mean 0 and variance 1."""
    result = []
    for row in rows:
        smooth = smoothed(row, spread)
        result.append((smooth - smooth.mean()) / max(float(smooth.std()), 1e-9))
    return result
