"""
Replace attention in a PyTorch model
====================================

``longspan.replace_attention`` puts mixers in the place of self-attention, and keeps the weights that mean the same.
Here a trained ``nn.TransformerEncoder`` classifies images of digits as sequences of patches.
"""

# %%
# Digits as sequences
# -------------------
# An image of 8 x 8 pixels becomes a sequence of 16 patches of 2 x 2 pixels.

import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import longspan

images, classes = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(images / 16, classes, test_size=0.3, random_state=0)


def patches(pixels: np.ndarray) -> Tensor:
    """Return images as sequences, (images, 16, 4)."""
    grid = torch.tensor(pixels, dtype=torch.float32).view(-1, 4, 2, 4, 2)
    return grid.transpose(2, 3).reshape(-1, 16, 4)


train_x, train_y = patches(x_train), torch.tensor(y_train)
test_x, test_y = patches(x_test), torch.tensor(y_test)

# %%
# A model of PyTorch
# ------------------


class Classifier(nn.Module):
    """Two layers of an encoder over patches."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.read = nn.Linear(4, dim)
        self.places = nn.Parameter(torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.read(x) + self.places).mean(1))


def accuracy(model: Classifier) -> float:
    """Accuracy on the test images."""
    with torch.no_grad():
        return float((model.eval()(test_x).argmax(1) == test_y).float().mean())


def fit(model: Classifier, epochs: int) -> list[float]:
    """Train a model and return the accuracy on the test images before, and after each epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * (len(train_x) // 64 + 1))
    accuracies = [accuracy(model)]
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(len(train_x)).split(64):
            loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        accuracies.append(accuracy(model))
    return accuracies


torch.manual_seed(0)
trained = Classifier()
curves = {"attention": fit(trained, 15)}
print(f"attention: accuracy {curves['attention'][-1]:.3f}")

# %%
# Replace and fine-tune
# ---------------------
# ``softmax`` computes the same function. ``linear`` starts from the same projections, ``additive`` from new ones.

for mixer in ("softmax", "linear", "additive"):
    model = copy.deepcopy(trained)
    report = longspan.replace_attention(model, mixer)
    print(str(report).splitlines()[0])
    curves[mixer] = fit(model, 4)
    print(f"{mixer}: accuracy {curves[mixer][0]:.3f} replaced, {curves[mixer][-1]:.3f} after 4 epochs")
baseline = LogisticRegression(max_iter=1000).fit(x_train, y_train).score(x_test, y_test)
print(f"logistic regression: accuracy {baseline:.3f}")

# %%
# Accuracy by epoch
# -----------------

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, values in curves.items():
    first = 0 if name == "attention" else 15
    axes.plot(first + np.arange(len(values)), values, marker="o", markersize=3, label=name)
axes.axhline(baseline, color="grey", linestyle=":", label="logistic regression")
axes.axvline(15, color="grey", linewidth=0.8)
axes.set(xlabel="epoch; replaced after 15", ylabel="test accuracy", ylim=(0, 1.02))
axes.legend()
plt.show()

# %%
# Take away: one line replaces attention in a trained model. Kept projections come near the former accuracy in a few
# epochs; a mixer with new weights needs longer.
# 16 patches are too few for a gain in speed: see :doc:`/auto_gallery/plot_cost`. The guide
# :doc:`/guides/replacing-attention` has masks, caches and weights.
