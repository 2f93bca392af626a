"""Labels that are likely wrong: a model near chance says nothing."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from longspan.tasks.base.mistakes import agreement, label_issues


def test_agreement_is_cohens_kappa() -> None:
    gold = np.array([0, 0, 1, 1, 1, 2])
    assert agreement(gold, gold, 3) == 1
    answers = np.array([0, 1, 1, 1, 0, 2])
    # 4 of 6 are equal; by chance (2·2 + 3·3 + 1·1) / 36.
    assert agreement(answers, gold, 3) == pytest.approx((4 / 6 - 14 / 36) / (1 - 14 / 36))
    assert agreement(np.zeros(6, int), np.zeros(6, int), 3) == 0


@pytest.mark.parametrize("strength", [0.0, 4.0])
def test_a_model_near_chance_accuses_no_label(strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gold = torch.randint(2, (200,), generator=generator)
    logits = torch.randn(200, 2, generator=generator) + strength * torch.nn.functional.one_hot(gold, 2)
    found = label_issues(logits, gold, ["a", "b"]).among(Dataset.from_dict({"where": [str(n) for n in range(200)]}))
    assert bool(found.reason) == (strength == 0)
    if strength == 0:
        assert "too weak" in found.reason
