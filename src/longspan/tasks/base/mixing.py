"""Both parts of a model, counts and network: weights that held-out rows choose, and scores: `WideTrainer`."""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from longspan.models import LongspanConfig
from longspan.results.parts import NAMES, Parts, compare_parts
from longspan.results.scores import S, Scores
from longspan.training.lengths import LengthTrainer, targets

#: Penalty that pulls the scales towards the wide part alone, in nats: documents by the hundred outweigh it. Few are
#: right by chance, all the more for the best of many epochs.
_PRIOR = 20.0
#: The same towards given scales of parts, none of which is better as a rule.
_EVEN_PRIOR = 2.0
#: Steps on the way from the sum of parts to one of them.
_STEPS = 12
#: Factors of logits to choose from: a penalty makes a model less sure, few examples make it too sure.
_FACTORS = tuple(2.0 ** (exponent / 2) for exponent in range(-6, 9))

Rows = Callable[[Tensor, Tensor], Tensor]
"""A number of each row, `(n,)`, from logits, `(n, c)`, and targets, `(n, ...)`."""


def best_scales(
    parts: Tensor, labels: Tensor, losses: Rows, points: Rows, anchor: Tensor | None = None, errors: float = 0.0
) -> Tensor:
    """Factors of the logits of parts, `(k,)` float32, at least 0.

    They have the lowest loss on the validation split. A penalty on what the others add pulls them towards the first
    part alone, so that confidence alone does not raise the scale of others. Where the sum would be worse than a part
    alone on these rows, scales go towards that part until it is not.

    Args:
        parts: `(n, k, c)` logits of each part, such as the wide and the deep one.
        labels: `(n, ...)` targets.
        losses: In nats, differentiable.
        points: Higher for better answers, such as 1 for the right class and 0 for another.
        anchor: `(k,)` scales that a weaker penalty pulls towards instead of the first part, which then is like others.
        errors: Number of standard errors of the difference by which a part alone has to be better than the sum.
    """
    logits, alone = parts.double(), torch.eye(parts.shape[1], dtype=torch.float64)
    start, prior = (alone[0], _PRIOR) if anchor is None else (anchor.double(), _EVEN_PRIOR)
    scales = start.clone().requires_grad_()
    # How far two classes' logits are apart. A part that is hardly sure of anything is not to be blown up.
    spread = logits[:, 1:].var(-1) if logits.shape[-1] > 1 else logits[:, 1:, 0].var(0, correction=0, keepdim=True)
    units = torch.cat([torch.ones(1, dtype=torch.float64), (2 * spread).mean(0).sqrt().clamp_min(1)])
    optimizer = torch.optim.LBFGS([scales], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = losses((scales[:, None] * logits).sum(1), labels).sum()
        found = found + prior * (units * (scales - start)).square().sum()
        found.backward()
        return found

    def found(scales: Tensor) -> Tensor:
        return points((scales[:, None] * logits).sum(1), labels).double()

    with torch.enable_grad():
        optimizer.step(loss)
    # A part that speaks against itself has nothing to say.
    best = scales.detach().clamp_min(0)
    for part in alone:
        better = found(part) - found(best)
        if float(better.mean()) > errors * float(better.std(correction=0)) / len(better) ** 0.5:
            way = (best * (1 - step / _STEPS) + part * (step / _STEPS) for step in range(1, _STEPS + 1))
            best = next(scales for scales in way if float((found(part) - found(scales)).mean()) <= 0)
    return best.float()


def calibrated_loss(logits: Tensor, loss: Callable[[Tensor], float]) -> tuple[float, float]:
    """Loss in nats of logits times the best factor, and this factor; one other than 1 has to earn it."""
    return min((loss(factor * logits) + math.log2(factor) ** 2, factor) for factor in _FACTORS)


def in_units(logits: Tensor, config: LongspanConfig) -> Tensor:
    """Logits in the unit of the data, which those of regression have."""
    head: Any = config.head
    scale, mean = getattr(head, "target_scale", 1.0), getattr(head, "target_mean", 0.0)
    return logits if (scale, mean) == (1, 0) else logits * scale + mean


def ratio_of_sums(kind: type[Scores], score: str, sums: Sequence[Tensor]) -> Parts:
    """Compare both parts and their sum by a score that is a ratio of sums over rows.

    Args:
        kind: The task's scores.
        score: One of them.
        sums: `(n, 2)` numerators and denominators of each of `NAMES`.
    """
    examples = {name: each.numpy() for name, each in zip(NAMES, sums, strict=True)}
    # A part without any decision divides 0 by 0.
    return compare_parts(
        score, kind.higher_is_better(score), examples, lambda sums: sums[..., 0] / sums[..., 1].clip(1e-12)
    )


class WideTrainer(LengthTrainer[S]):
    """A `LengthTrainer` that chooses the scales of a model's two parts whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them. Training does
    not depend on them.
    """

    @staticmethod
    @abc.abstractmethod
    def losses(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        """Loss of each row in nats, `(n,)`, from logits, `(n, c)`, as the model's sum of parts has them."""

    @staticmethod
    @abc.abstractmethod
    def points(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        """Number of each row, `(n,)`, that is higher for better answers."""

    @staticmethod
    @abc.abstractmethod
    def compare(parts: Tensor, both: Tensor, labels: Tensor, config: LongspanConfig) -> Parts:
        """Scores of both parts, `(n, 2, c)`, and of their sum, `(n, c)`."""

    def scales(self, parts: Tensor, labels: Tensor) -> Tensor:
        """Factors of the logits of both parts on the validation split, `(2,)`."""
        losses, points = (functools.partial(each, config=self.model.config) for each in (self.losses, self.points))
        return best_scales(parts, labels, losses, points)

    def decide(self, parts: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        """Choose further settings on the validation split; by default none."""

    def score(self, dataset: Dataset) -> S:
        wide: Any = getattr(self.model, "wide", None)
        config, labels = self.model.config, targets(dataset)
        parts = None if wide is None else self.outputs(dataset, "parts")
        validation = dataset is self.eval_dataset
        if parts is None:
            logits = self.outputs(dataset)
        else:
            if validation:
                wide.scales.copy_(self.scales(parts, labels))
                # Training fits the deep part alone.
                self.loss_as_trained = float(self.losses(parts[:, 1].double(), labels, config).mean())
            logits = wide.combined(*parts.unbind(1))
            self.remember_parts(dataset, functools.partial(self.compare, parts, logits, labels, config))
        if validation:
            self.decide(parts, logits, labels)
        return self.measure(in_units(logits, config) if parts is not None else logits, labels)
