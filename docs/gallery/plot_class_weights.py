"""
Rare classes: weights or a threshold
====================================

A classifier may hardly ever predict a rare class. ``class_weights="balanced"`` changes that, and so does a lower
threshold.
"""

# %%
# One alarm in twelve messages
# ----------------------------
# Twelve of sixty words are more frequent in alarms, but all words occur in both classes.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, precision_recall_curve, precision_score, recall_score

import longspan

numbers = np.random.default_rng(0)
WORDS = np.array([f"word{number}" for number in range(60)])
usual = np.ones(60) / 60
alarming = np.where(np.arange(60) < 12, 2.6, 1.0)
alarming /= alarming.sum()


def messages(number: int) -> pd.DataFrame:
    """Return messages of 25 words, of which a twelfth are alarms."""
    rows = []
    for _ in range(number):
        alarm = numbers.random() < 1 / 12
        rows.append(
            (" ".join(numbers.choice(WORDS, 25, p=alarming if alarm else usual)), "alarm" if alarm else "usual")
        )
    return pd.DataFrame(rows, columns=["text", "label"])


train, held_out, test = messages(1500), messages(1500), messages(3000)
print(test.label.value_counts(normalize=True).round(3))

# %%
# Train with and without weights
# ------------------------------
# "balanced" gives every class the same total weight in the loss.

truth = test.label.eq("alarm").to_numpy()
chances, others = {}, {}
with tempfile.TemporaryDirectory() as folder:
    for weights in ("none", "balanced"):
        run = longspan.train(
            "classify",
            data=train,
            run=Path(folder, weights),
            class_weights=weights,
            wide=False,
            dim=16,
            heads=4,
            num_train_epochs=6,
            min_steps=0,
            max_minutes=0,
            progress=False,
        )
        chances[weights] = np.array([one.probabilities["alarm"] for one in run.predict(test.text)])
        others[weights] = np.array([one.probabilities["alarm"] for one in run.predict(held_out.text)])

# %%
# Another way needs no weights: choose the threshold with the best F1 on held-out messages.

precision, recall, thresholds = precision_recall_curve(held_out.label.eq("alarm"), others["none"])
f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
threshold = thresholds[np.argmax(f1[:-1])]
print(f"threshold {threshold:.2f}")

choices = {
    "no weights": chances["none"] > 0.5,
    "class_weights=balanced": chances["balanced"] > 0.5,
    "no weights, other threshold": chances["none"] > threshold,
}
for name, alarms in choices.items():
    accuracy, recall = (alarms == truth).mean(), recall_score(truth, alarms)
    precision = precision_score(truth, alarms, zero_division=0)
    print(f"{name:28} accuracy {accuracy:.2f}   recall {recall:.2f}   precision {precision:.2f}")
print(f"{'always usual':28} accuracy {1 - truth.mean():.2f}   recall 0.00")

# %%
# Precision and recall
# --------------------

figure, axes = plt.subplots(figsize=(6.2, 4.2), layout="constrained")
for weights, name in (("none", "no weights"), ("balanced", "balanced")):
    precision, recall, _ = precision_recall_curve(truth, chances[weights])
    area = average_precision_score(truth, chances[weights])
    axes.plot(recall[1:-1], precision[1:-1], label=f"{name}: average precision {area:.2f}")
for (name, alarms), marker in zip(choices.items(), "osD", strict=True):
    place = recall_score(truth, alarms), precision_score(truth, alarms, zero_division=0)
    axes.plot(*place, marker, markersize=9, markeredgecolor="black", linestyle="none", label=name)
axes.axhline(truth.mean(), color="grey", linestyle=":", label="chance level")
axes.set(xlabel="recall of alarms", ylabel="precision", ylim=(0, 1.02), title="3,000 new messages")
axes.legend(fontsize=8)
plt.show()

# %%
# Take away: weights move the operating point along almost the same precision-recall curve, as another threshold does.
# Accuracy hides the difference: look at recall and macro-F1. The guide :doc:`/guides/class-imbalance` has more.
