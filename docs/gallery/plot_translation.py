"""
Translate and read n-best lists
===============================

The recipe ``translation`` trains an encoder and a decoder. Here it learns dates: the source is written in words, the
target in digits.
"""

# %%
# Pairs of texts
# --------------
# A list of pairs will do: the source first, then the target.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

MONTHS = ["January", "February", "March", "April", "May", "June"]
MONTHS += ["July", "August", "September", "October", "November", "December"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def pair(choose: random.Random) -> tuple[str, str]:
    """Return a date in words and in digits."""
    day, month, year = choose.randint(1, 28), choose.randint(1, 12), choose.randint(20, 29)
    return f"{choose.choice(DAYS)}, {MONTHS[month - 1]} {day}, 20{year}", f"20{year}-{month:02}-{day:02}"


choose = random.Random(0)
pairs = [pair(choose) for _ in range(1500)]
print(*pairs[0], sep=" -> ")

# %%
# Train
# -----

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "translation",
    data=pairs,
    run=Path(folder.name, "run"),
    dim=64,
    depth=1,
    feed_forward_dim=128,
    short_convolution=3,
    dropout=0.0,
    vocab_size=400,
    learning_rate=1e-2,
    warmup_steps=50,
    batch_tokens=2048,
    num_train_epochs=15,
    min_steps=0,
    progress=False,
)
scores = run.scores["validation"]
print(f"BLEU {scores.bleu:.1f}, chrF {scores.chrf:.1f}")
print(scores.signatures["bleu"])

# %%
# Translate
# ---------
# ``beams`` sets the width of the search, ``best`` the number of translations. A score is a mean log probability.

for found in run.predict(["Sunday, May 3, 2026", "Friday, June 21, 2024"], beams=4, best=2):
    for one in found.alternatives:
        print(f"{one['translation']}  {one['score']:.3f}")

# %%
# The learning curve
# ------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
evaluated = [row for row in run.history if "validation_loss" in row]
left.plot([row["epoch"] for row in evaluated], [row["validation_loss"] for row in evaluated], marker="o")
left.set(xlabel="epoch", ylabel="nats per target token", title="validation loss")
right.plot([row["epoch"] for row in evaluated], [row["validation_bleu"] for row in evaluated], marker="o")
right.set(xlabel="epoch", ylabel="BLEU", ylim=(0, 100), title="greedy translations")
plt.show()

# %%
# Take away: any pairs of texts will do, and every translation has a score.
# The page :doc:`/translation` has parallel files, beams and baselines.
