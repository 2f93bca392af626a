"""
Replace attention in a PyTorch model
====================================

Mixers are PyTorch modules that map (batch, positions, width) to the same shape, as self-attention does. Here they
classify images of digits as sequences of patches.
"""

# %%
# Digits as sequences
# -------------------
# An image of 8 x 8 pixels becomes a sequence of 16 patches of 2 x 2 pixels.

import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from longspan import mixers

images, classes = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(images / 16, classes, test_size=0.3, random_state=0)


def patches(pixels: np.ndarray) -> Tensor:
    """Return images as sequences, (images, 16, 4)."""
    grid = torch.tensor(pixels, dtype=torch.float32).view(-1, 4, 2, 4, 2)
    return grid.transpose(2, 3).reshape(-1, 16, 4)


train_x, train_y = patches(x_train), torch.tensor(y_train)
test_x, test_y = patches(x_test), torch.tensor(y_test)

# %%
# A model with interchangeable attention
# --------------------------------------
# ``attention`` is the only part that moves information between positions. ``nn.MultiheadAttention`` needs a wrapper,
# because it takes queries, keys and values.


class SelfAttention(nn.Module):
    """The multi-head attention of PyTorch, of a sequence to itself."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


class Classifier(nn.Module):
    """Two layers of attention and feed-forward networks over patches."""

    def __init__(self, attentions: list[nn.Module], dim: int = 32) -> None:
        super().__init__()
        self.read = nn.Linear(4, dim)
        self.places = nn.Parameter(torch.randn(16, dim))
        self.attentions = nn.ModuleList(attentions)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in attentions)
        self.networks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim)) for _ in attentions
        )
        self.output = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(x) + self.places
        for attention, norm, network in zip(self.attentions, self.norms, self.networks, strict=True):
            x = x + attention(norm(x))
            x = x + network(x)
        return self.output(x.mean(1))


def fit(model: Classifier, epochs: int = 15) -> list[float]:
    """Train a model and return the accuracy on the test images after each epoch."""
    steps = epochs * (len(train_x) // 32 + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    accuracies = []
    for _ in range(epochs):
        for rows in torch.randperm(len(train_x)).split(32):
            loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            accuracies.append(float((model(test_x).argmax(1) == test_y).float().mean()))
    return accuracies


# %%
# The same model with three mechanisms
# ------------------------------------
# A linear classifier of pixels is the baseline.

makers = {
    "nn.MultiheadAttention": lambda: SelfAttention(32),
    "additive": lambda: mixers.build("additive", dim=32, heads=4),
    "linear": lambda: mixers.build("linear", dim=32, heads=4),
}
curves = {}
for name, make in makers.items():
    torch.manual_seed(0)
    model = Classifier([make(), make()])
    start = time.perf_counter()
    curves[name] = fit(model)
    seconds = time.perf_counter() - start
    print(f"{name:22} accuracy {curves[name][-1]:.3f}, {seconds:.1f} s of training")
baseline = LogisticRegression(max_iter=1000).fit(x_train, y_train).score(x_test, y_test)
print(f"{'logistic regression':22} accuracy {baseline:.3f}")

# %%
# Accuracy by epoch
# -----------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=[1, 2], layout="constrained")
left.imshow(x_test[0].reshape(8, 8), cmap="gray_r")
left.set(title=f"A {y_test[0]}: 16 patches", xticks=[], yticks=[])
for place in (1.5, 3.5, 5.5):
    left.axhline(place, color="tab:blue", linewidth=0.8)
    left.axvline(place, color="tab:blue", linewidth=0.8)
for name, values in curves.items():
    right.plot(np.arange(1, 1 + len(values)), values, marker="o", markersize=3, label=name)
right.axhline(baseline, color="grey", linestyle=":", label="logistic regression")
right.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1.02))
right.legend()
plt.show()

# %%
# Take away: a mixer replaces self-attention in one line. ``mask`` is True at real tokens.
# 16 tokens are too few for a gain in speed: see :doc:`/auto_gallery/plot_cost`. The guide
# :doc:`/guides/replacing-attention` has masks, packing and weights.
