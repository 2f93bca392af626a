"""training.optim=coupled_adam: the decay of weights is part of their gradients."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, AdamW

from longspan.training.arguments import Arguments
from longspan.training.base import LongspanTrainer


def test_a_step_is_that_of_adam_with_the_decay_in_the_gradient(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"output_dir": str(tmp_path), "learning_rate": 0.1, "weight_decay": 0.3, "use_cpu": True}
    kind, options = LongspanTrainer.get_optimizer_cls_and_kwargs(Arguments(optim="coupled_adam", **settings))
    assert kind is Adam
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = kind([weight], weight_decay=0.3, **options)
    wanted = weight.detach().double()
    mean, square = torch.zeros_like(wanted), torch.zeros_like(wanted)
    for step, gradient in enumerate((torch.tensor([0.5, 0.1]), torch.tensor([-0.2, 0.4])), 1):
        weight.grad = gradient
        optimizer.step()
        whole = gradient.double() + 0.3 * wanted
        mean, square = 0.9 * mean + 0.1 * whole, 0.999 * square + 0.001 * whole**2
        wanted = wanted - 0.1 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    # Rounding of float32.
    torch.testing.assert_close(weight.detach().double(), wanted, rtol=1e-5, atol=0)
    assert LongspanTrainer.get_optimizer_cls_and_kwargs(Arguments(**settings))[0] is AdamW
