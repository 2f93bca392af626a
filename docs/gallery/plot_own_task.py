"""
Write a task
============

A task is a class that defines inputs, targets, scores and predictions. ``train``, ``evaluate``, ``predict`` and
``compare`` then work with it.
"""

# %%
# The task
# --------
# A review has 1 to 5 stars. ``columns`` defines the columns of the data, ``head`` the outputs of the model, ``target``
# what it learns, ``score`` the scores, and ``answer`` a prediction.

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from datasets import Dataset, Value
from torch import Tensor

import longspan
from longspan import LongspanConfig, LongspanForSequenceClassification
from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column, Number, Text
from longspan.data.config import DataConfig
from longspan.results import Prediction
from longspan.results.scores import Scores, score
from longspan.tasks.base.documents import DocumentTask


@dataclass(frozen=True)
class StarsData(DataConfig):
    """``[data]`` of recipes, with one more key."""

    stars_column: str = "stars"


@dataclass(frozen=True)
class StarsScores(Scores):
    """How close predictions are."""

    mean_error: float = score("mean absolute error", higher_is_better=False)
    within_one: float = score("within one star", higher_is_better=True, share=True)


@dataclass(frozen=True)
class StarsPrediction(Prediction):
    """The stars of one review."""

    stars: float | None = None


class Stars(DocumentTask[StarsScores, StarsData]):
    """How many stars a review gives, from 1 to 5."""

    data_config = StarsData
    scores = StarsScores
    prediction = StarsPrediction
    model_class = LongspanForSequenceClassification

    def columns(self, data: StarsData) -> Sequence[Column]:
        return [Text("text", "text_column"), Number("stars", "stars_column", target=True)]

    def head(self, training: Dataset, data: StarsData) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def target(self, config: LongspanConfig) -> Carried:
        # Around 0, where a new model starts.
        return Carried("stars", Value("float32"), lambda stars, where: stars - 3)

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> StarsScores:
        error = (logits.squeeze(-1) - targets).abs()
        return StarsScores(float(error.mean()), float((error <= 1).float().mean()))

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> StarsPrediction:
        return StarsPrediction(where, stars=round(float(torch.clamp(logits + 3, 1, 5)), 2))


# %%
# Data and a recipe
# -----------------
# Each adjective adds or subtracts stars, and "very" doubles the adjective after it. A recipe names the task by its
# dotted path: in a package of your own, ``mypackage.Stars``.

WORDS = {"awful": -2, "dull": -1, "long": -1, "fair": 0, "good": 1, "funny": 1, "great": 2}
choose = random.Random(0)


def review() -> dict[str, object]:
    """Return a review and its stars."""
    words, total = [], 0
    for word in choose.choices(list(WORDS), k=choose.randint(1, 3)):
        very = choose.random() < 0.4
        words += ["a", "very", word, "film"] if very else ["a", word, "film"]
        total += WORDS[word] * (2 if very else 1)
    return {"text": " ".join(words), "stars": min(5, max(1, 3 + total))}


train, test = [review() for _ in range(600)], [review() for _ in range(300)]
folder = tempfile.TemporaryDirectory()
recipe = Path(folder.name, "stars.toml")
recipe.write_text(
    f"""
task = "{Stars.__module__}.Stars"

[data]
tokens = "words"

[model]
mixers = ["additive"]
dim = 32
heads = 4
depth = 1
short_convolution = 3

[training]
num_train_epochs = 15
learning_rate = 3e-3
""",
    encoding="utf-8",
)

# %%
# Train and evaluate
# ------------------
# ``evaluate`` and ``predict`` return the classes of the task. The baseline predicts the mean of the training data.

run = longspan.train(recipe, data=train, run=Path(folder.name, "run"), progress=False)
scores = run.evaluate(test).scores
true = np.array([row["stars"] for row in test])
mean = np.mean([row["stars"] for row in train])
print(f"longspan: mean error {scores.mean_error:.2f} stars, within one star {scores.within_one:.2f}")
print(
    f"baseline: mean error {np.abs(true - mean).mean():.2f} stars, within one star {(np.abs(true - mean) <= 1).mean():.2f}"  # noqa: E501
)
print(run.predict(["a very dull film a good film"])[0])

# %%
# Predicted stars by true stars
# -----------------------------

predicted = np.array([one.stars for one in run.predict([row["text"] for row in test])])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
median = {"color": "tab:blue", "linewidth": 2}
left.boxplot(
    [predicted[true == stars] for stars in range(1, 6)], positions=range(1, 6), showfliers=False, medianprops=median
)
left.plot([1, 5], [1, 5], color="grey", linestyle=":", label="ideal")
left.axhline(mean, color="tab:orange", linestyle="--", label="baseline")
left.set(xlabel="true stars", ylabel="predicted stars", title="300 test reviews")
left.legend()
values = [each["validation_mean_error"] for each in run.history if "validation_mean_error" in each]
right.plot(range(1, len(values) + 1), values, marker="o", markersize=4)
right.set(xlabel="epoch", ylabel="mean error, stars", title="Validation", ylim=(0, None))
plt.show()

# %%
# Take away: a task is three small dataclasses and a class with five methods.
# The page :doc:`/adding-a-task` has ``longspan.testing.check_task``, other inputs than text, and two streams.
