"""Training of classifiers with a wide part, which counts as much as the validation split says: `WideTrainer`."""

from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.models.wide import Wide
from longspan.scores import Scores
from longspan.training.lengths import LengthTrainer, targets

PARTS = ("wide", "deep")
#: What pulls each scale towards a half, in nats: with few validation documents, none of which is wrong, both would grow
#: without an end.
_PRIOR = 1.0


class WideTrainer(LengthTrainer):
    """A `LengthTrainer` that chooses the scales of a model's two parts whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them. Training does
    not depend on them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._accuracies: dict[int, dict[str, float]] = {}

    def score(self, dataset: Dataset) -> Scores:
        wide = self.model.wide
        if wide is None or dataset is not self.eval_dataset:
            return super().score(dataset)
        parts, labels = self.outputs(dataset, "parts"), targets(dataset)
        wide.scales.copy_(best_scales(parts, labels))
        both = combined(wide, parts)
        self._accuracies[self.state.global_step] = accuracies(parts, both, labels)
        return self.measure(both, labels)

    def details(self) -> dict[str, Any]:
        """Return what each part of the model that was kept gets right of the validation split."""
        found = self._accuracies.get(self.kept_step())
        return {} if found is None else {"parts": found}


def combined(wide: Wide, parts: Tensor) -> Tensor:
    """Return the logits of both parts together, `(n, c)`, from `(n, 2, c)`, on the CPU."""
    scales = wide.scales.detach().float().cpu()
    return (scales[:, None] * parts).sum(1)


def accuracies(parts: Tensor, both: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the share of documents that each part gets right alone, and both together."""
    named = {**dict(zip(PARTS, parts.unbind(1), strict=True)), "both": both}
    return {name: _accuracy(logits, labels) for name, logits in named.items()}


def best_scales(parts: Tensor, labels: Tensor) -> Tensor:
    """Return what to multiply the logits of both parts by, `(2,)` float32, at least 0.

    They have the lowest cross-entropy on the validation split, pulled a little towards a half each, or one alone. Where
    the sum would get fewer documents right than the wide part alone, only that counts: more than counting must be
    earned.

    Args:
        parts: `(n, 2, c)` logits of the wide and the deep part.
        labels: `(n,)` class numbers.
    """
    wide_alone = _fitted(parts[:, :1], labels)
    alone = torch.cat([wide_alone, torch.zeros(1, dtype=wide_alone.dtype)])
    both = _fitted(parts, labels)
    if both[0] <= 0:
        both = torch.cat([torch.zeros(1, dtype=both.dtype), _fitted(parts[:, 1:], labels).clamp_min(0)])
    if both[1] <= 0:
        return alone.float()
    right = [_accuracy((scales[:, None] * parts).sum(1), labels) for scales in (alone, both)]
    return (alone if right[0] > right[1] else both).float()


def _fitted(parts: Tensor, labels: Tensor) -> Tensor:
    """Return the scales, `(k,)` float64, with the lowest penalised cross-entropy of the sum of `(n, k, c)` logits."""
    logits = parts.double()
    scales = torch.full((parts.shape[1],), 1.0 / parts.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scales], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        off = (scales - 1.0 / len(scales)).square().sum()
        found = cross_entropy((scales[:, None] * logits).sum(1), labels, reduction="sum") + _PRIOR * off
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
    return scales.detach()


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(-1) == labels).double().mean())
