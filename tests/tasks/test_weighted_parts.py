"""Weights of a model's two parts, in every task that chooses them on validation rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longspan import recipes
from longspan.models.wide.classifier import Wide
from longspan.tasks.base.classes import balanced_scales
from longspan.tasks.base.mixing import WideTrainer
from longspan.tasks.multi_label_classification.scores import best_thresholds

#: Recipes whose trainers weigh two parts. Those of words, clicks and language models have tests of their own.
RECIPES = ("classify", "multi-label", "regression", "audio", "graphs")


def rows(kind: str, good: tuple[float, float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of two parts that are more or less good, (60, 2, c), and targets."""
    generator = torch.Generator().manual_seed(seed)
    noise = 2 * torch.randn(60, 2, 1 if kind == "regression" else 3, generator=generator)
    if kind == "regression":
        labels = torch.randn(60, generator=generator)
        signal = labels[:, None]
    elif kind == "multi-label":
        labels = (torch.rand(60, 3, generator=generator) < 0.4).double()
        signal = 2 * labels - 1
    else:
        labels = torch.randint(0, 3, (60,), generator=generator)
        signal = torch.eye(3)[labels]
    return noise + torch.tensor(good)[:, None] * signal[:, None], labels


@pytest.mark.parametrize("good", [(4.0, 1.0), (1.0, 4.0), (2.0, 2.0), (0.0, 0.0)])
@pytest.mark.parametrize("kind", [*RECIPES, "nodes"])
def test_the_sum_is_not_worse_than_its_best_part(kind: str, good: tuple[float, float]) -> None:
    """On the rows that choose the weights."""
    head = SimpleNamespace(target_mean=0.0, target_scale=1.0)
    documents = kind in ("classify", "multi-label", "regression")
    model = SimpleNamespace(wide=Wide(16, 3) if documents else None, config=SimpleNamespace(head=head))
    task: Any = None if kind == "nodes" else recipes.load(kind).task
    trainer = task and object.__new__(task.trainer_class)
    for seed in range(12):
        parts, labels = rows(kind, good, seed)
        if trainer is None:
            scales = balanced_scales(parts, labels)
        else:
            assert isinstance(trainer, WideTrainer)
            trainer.model = model
            scales = trainer.scales(parts, labels)
        assert bool((scales >= 0).all())
        scored = [(scales[:, None] * parts).sum(1), *parts.unbind(1)]
        if trainer is None:
            both, *alone = (float((logits.argmax(1) == labels).double().mean()) for logits in scored)
        elif kind == "multi-label":
            both, *alone = (_micro_f1(logits, labels) for logits in scored)
        else:
            both, *alone = (float(trainer.points(logits, labels, model.config).double().mean()) for logits in scored)
        assert both >= max(alone) - 1e-6, seed


def _micro_f1(logits: torch.Tensor, labels: torch.Tensor) -> float:
    given = logits.double().sigmoid() >= torch.tensor(best_thresholds(logits, labels), dtype=torch.float64)
    return float(2 * (given & (labels > 0.5)).sum() / (given.sum() + labels.sum()))
