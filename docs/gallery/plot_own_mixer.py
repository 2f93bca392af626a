"""
Write a mixer and check it
==========================

A mixer is a class with two methods. ``longspan.testing.check_mixer`` checks padding, precision, compilation and more,
and a recipe can then train it.
"""

# %%
# The mixer
# ---------
# Each position receives a mean over all positions, weighted by exp(-distance / reach). The reach is learned. Padding in
# ``x`` is zero already, but it must not count in the mean.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import longspan
from longspan.mixers import Mixer
from longspan.testing import check_mixer


class Nearness(Mixer):
    """Each position receives a mean of all, weighted by their nearness.

    Equations: y_t = W sum_j a_tj x_j / sum_j a_tj, a_tj = exp(-|t - j| / reach)
    Cost: t^2 dim time
    Source: this page
    """

    def __init__(self, dim: int, *, reach: float = 3.0) -> None:
        super().__init__(dim)
        self.log_reach = nn.Parameter(torch.tensor(float(np.log(reach))))
        self.project = nn.Linear(dim, dim)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        weights = self.weights(x.shape[1])
        # Sums of products in the type of x, as under autocast.
        real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        weights = weights.to(x.dtype) * real.unsqueeze(1)
        total = weights.sum(2, keepdim=True).clamp_min(1e-6)
        return self.project(weights @ x / total)

    def weights(self, length: int) -> Tensor:
        places = torch.arange(length, device=self.log_reach.device)
        distance = (places.unsqueeze(0) - places.unsqueeze(1)).abs()
        return torch.exp(-distance / self.log_reach.exp())

    def operations(self, length: int) -> int:
        return 2 * length**2 * self.dim + 2 * length * self.dim**2


# %%
# The naive form
# --------------
# The formula as loops. The checks compare both forms.


def naive(mixer: Nearness, x: Tensor, mask: Tensor | None = None) -> Tensor:
    rows, length, _ = x.shape
    y = torch.zeros_like(x)
    for row in range(rows):
        real = [j for j in range(length) if mask is None or mask[row, j]]
        for t in real:
            weights = {j: torch.exp(-abs(t - j) / mixer.log_reach.exp()) for j in real}
            mean = sum(weights[j] * x[row, j] for j in real) / sum(weights.values())
            y[row, t] = mixer.project(mean)
    return y


check_mixer(Nearness, naive=naive)

# %%
# Train with it
# -------------
# A recipe names a mixer by its dotted path, such as ``mypackage.Nearness``. The word after "not" decides the class of a
# text. Additive attention without positions can only count words.

numbers = np.random.default_rng(0)
texts, labels = [], []
for _ in range(400):
    words = [str(word) for word in numbers.choice(["red", "blue", "one", "two", "up", "down"], 24)]
    label = str(numbers.choice(["red", "blue"]))
    place = numbers.integers(20)
    words[place : place + 2] = ["not", label]
    texts.append(" ".join(words))
    labels.append(label)

scores = {}
with tempfile.TemporaryDirectory() as folder:
    for name, mixer in (("additive", "additive"), ("Nearness", f"{Nearness.__module__}.Nearness")):
        run = longspan.train(
            "classify",
            data={"text": texts, "label": labels},
            run=Path(folder, name),
            mixers=[mixer],
            dim=32,
            heads=4,
            wide=False,
            token_dropout=0.0,
            num_train_epochs=20,
            min_steps=0,
            max_minutes=0,
            progress=False,
        )
        scores[name] = [each["validation_accuracy"] for each in run.history if "validation_accuracy" in each]
        print(f"{name}: validation accuracy {max(scores[name]):.2f}")
        if name == "Nearness":
            layer = next(module for module in run.model.modules() if isinstance(module, Nearness))
            learned = layer.weights(25)[12].detach()
            print(f"reach: {layer.log_reach.exp().item():.2f}, was 3")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for name, values in scores.items():
    left.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=name)
left.axhline(0.5, color="grey", linestyle=":", label="chance level")
left.set(
    xlabel="epoch",
    ylabel="validation accuracy",
    xticks=range(2, 21, 3),
    ylim=(0.3, 1.03),
    title="Learning curves",
)
left.legend()
right.bar(range(-12, 13), learned)
right.set(xlabel="distance in tokens", ylabel="weight", title="Learned weights by distance")
plt.show()

# %%
# Take away: a mixer is one class, and ``check_mixer`` finds what breaks with padding, half precision or compilation.
# The page :doc:`/adding-a-mechanism` shows streams, causal forms and cross attention.
