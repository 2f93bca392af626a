"""Rarity of a text's tokens in the training data: `Familiarity`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from longspan.errors import UserError
from longspan.results.outputs import replacing

#: Share of training texts that are unfamiliar; training texts that it is measured on.
FALSE_ALARMS, SAMPLE = 0.01, 5000
#: What is added to the count of each token, that of unknown ones among them.
_SMOOTHING = 0.5
_FILE = "familiarity.safetensors"


@dataclass(frozen=True)
class Familiarity:
    """Mean cost of a text's tokens in nats, -log p with p their frequency in the training data, and what is usual.

    A text of n tokens has z = (cost - mean) / sqrt(between + within / n). It is unfamiliar if z is above that of 99 %
    of training texts, each by the frequencies in all others. So texts in other languages or forms are, mostly.

    Attributes:
        costs: `(v,)` float32 cost of each token.
        mean: Mean cost of texts.
        between: Variance of costs between long texts.
        within: Variance of the cost of tokens in a text.
        limit: Largest z of a familiar text.
        validation: Share of validation texts that are unfamiliar.
    """

    costs: np.ndarray
    mean: float
    between: float
    within: float
    limit: float
    validation: float

    @classmethod
    def fitted(
        cls, texts: Sequence[np.ndarray], counts: np.ndarray, unknown: int | None, validation: Sequence[np.ndarray]
    ) -> "Familiarity":
        """Fit it to training texts.

        Args:
            texts: Token ids of some training texts, at least one of which has tokens.
            counts: `(v,)` how often each token is in all training texts.
            unknown: The token that stands for all unknown ones, if there is one; each is as rare as one not seen.
            validation: Token ids of validation texts.
        """
        counts = counts.astype(np.float64)
        if unknown is not None:
            counts[unknown] = 0
        total = counts.sum() + _SMOOTHING * len(counts)
        costs = -np.log((counts + _SMOOTHING) / total)
        means, variances, sizes = [], [], []
        for ids in texts:
            if not len(ids):
                continue
            own, number = np.unique(ids, return_counts=True)
            # Without the text itself, whose rare tokens would seem known.
            others = np.maximum(counts[own] - number, 0)
            apart = -np.log((others + _SMOOTHING) / max(total - number.sum(), _SMOOTHING))
            means.append(np.average(apart, weights=number))
            variances.append(np.average((apart - means[-1]) ** 2, weights=number))
            sizes.append(number.sum())
        cost, size = np.array(means), np.array(sizes)
        mean, within = float(cost.mean()), float(np.mean(variances))
        between = max(float(np.mean((cost - mean) ** 2 - within / size)), 1e-4)
        z = (cost - mean) / np.sqrt(between + within / size)
        limit = float(np.quantile(z, 1 - FALSE_ALARMS, method="higher"))
        found = cls(costs.astype(np.float32), mean, between, within, limit, 0.0)
        alarms = sum(map(found.unfamiliar, validation))
        return replace(found, validation=alarms / max(1, len(validation)))

    def unfamiliar(self, ids: np.ndarray) -> bool:
        """Whether a text is unlike the training data; one without tokens is not."""
        if not len(ids):
            return False
        cost = float(self.costs[np.minimum(ids, len(self.costs) - 1)].mean())
        return bool((cost - self.mean) / (self.between + self.within / len(ids)) ** 0.5 > self.limit)

    def save(self, folder: Path) -> None:
        """Write it to a folder, as a file of safetensors."""
        usual = np.array([self.mean, self.between, self.within, self.limit, self.validation], np.float64)
        with replacing(folder / _FILE) as fresh:
            save_file({"costs": self.costs, "usual": usual}, fresh)

    @classmethod
    def read(cls, folder: Path) -> "Familiarity | None":
        """Read it from a folder; None where it was not measured.

        Raises:
            UserError: The file is damaged.
        """
        path = folder / _FILE
        if not path.is_file():
            return None
        try:
            found = load_file(path)
            costs, usual = found["costs"], found["usual"]
            if costs.ndim != 1 or not len(costs) or usual.shape != (5,):
                raise ValueError(f"shapes {costs.shape} and {usual.shape}")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise UserError(
                f"expected frequencies of tokens in {str(path)!r}, got a damaged file; delete it."
            ) from error
        return cls(costs, *map(float, usual))
