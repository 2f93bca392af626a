"""
Few labels and many texts without
=================================

``unlabelled`` names texts without labels. The n-gram part of a classifier learns from them which words go together.
"""

# %%
# Much text, few labels
# ---------------------
# Six subjects have 50 words each. About eight of the twelve words of a text are from its subject. With few labelled
# texts, most words never occur in them.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

choose = random.Random(0)
SUBJECTS = ["sport", "food", "money", "music", "travel", "health"]
OTHER = [f"word{number}" for number in range(60)]


def text(subject: str) -> str:
    """Return a text about a subject."""
    own = [f"{subject}{number}" for number in range(50)]
    return " ".join(choose.choice(own if choose.random() < 2 / 3 else OTHER) for _ in range(12))


folder = tempfile.TemporaryDirectory()
texts = Path(folder.name, "texts.csv")
texts.write_text("text\n" + "\n".join(text(choose.choice(SUBJECTS)) for _ in range(2000)) + "\n")
pool = [(text(subject), subject) for subject in SUBJECTS * 8]
validation = [(text(subject), subject) for subject in SUBJECTS * 10]
test = [(text(subject), subject) for subject in SUBJECTS * 60]

# %%
# With and without them
# ---------------------
# The time it takes is that of the labels, and seconds for the texts.

SMALL = {"dim": 32, "heads": 4, "max_minutes": 0, "num_train_epochs": 5, "per_device_train_batch_size": 8}
amounts = [1, 2, 4]
accuracies: dict[str, list[float]] = {"labels alone": [], "with 2,000 texts": []}
for amount in amounts:
    for name, settings in zip(accuracies, ({}, {"unlabelled": texts}), strict=True):
        run = longspan.train(
            "classify",
            data={"train": pool[: amount * len(SUBJECTS)], "validation": validation},
            run=Path(folder.name, f"{name} {amount}"),
            progress=False,
            **SMALL,
            **settings,
        )
        accuracies[name].append(run.evaluate(test).scores.accuracy)
    print(f"{amount} per subject: " + ", ".join(f"{name} {values[-1]:.2f}" for name, values in accuracies.items()))

# %%
# What was read is in the results
# -------------------------------

print(run.details["unlabelled"])

# %%
# Accuracy by the number of labels
# --------------------------------

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, values), marker in zip(accuracies.items(), "so", strict=True):
    axes.plot(amounts, values, marker=marker, label=name)
axes.axhline(1 / len(SUBJECTS), color="grey", linestyle=":", label="chance level")
axes.set_xticks(amounts)
axes.set(xlabel="labelled texts per subject", ylabel="accuracy on 360 new texts", ylim=(0, 1.02))
axes.legend(loc="lower right")
plt.show()

# %%
# Take away: where labels are few and texts are many, give the texts, too. See :doc:`/guides/few-labels`.
