"""
Find tickets about the same problem
===================================

``longspan train pairs`` learns one label for two documents. Here they are support tickets, which may be about the same
problem. Each ticket is read by itself, by the same encoder.
"""

# %%
# Pairs of tickets
# ----------------
# Six problems, each of which has several words. Two tickets about the same problem need not share any of them.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import longspan

PROBLEMS = {
    "login": "password login locked account reset code",
    "invoice": "invoice bill charged refund tax receipt",
    "delivery": "parcel courier late delivery tracking address",
    "sound": "headphones noise crackle volume mute speaker",
    "battery": "battery charge cable empty overheats swollen",
    "update": "update version crash install restart freezes",
}
FILLER = [
    "hello",
    "since",
    "yesterday",
    "my",
    "please",
    "the",
    "again",
    "help",
    "thanks",
    "when",
    "after",
    "still",
    "now",
]
random = np.random.default_rng(0)


def ticket(problem: str) -> str:
    """Return a ticket of 8 to 40 words, about a fifth of which are about the problem."""
    size = int(random.integers(8, 40))
    about = random.choice(PROBLEMS[problem].split(), max(2, size // 5))
    return " ".join(random.permutation([*about, *random.choice(FILLER, size)]))


def pair(same: bool) -> dict[str, str]:
    """Return two tickets, and whether they are about the same problem."""
    one, other = random.choice([*PROBLEMS], 2, replace=False)
    return {"first": ticket(one), "second": ticket(one if same else other), "label": "same" if same else "different"}


data = pd.DataFrame([pair(bool(number % 2)) for number in range(1000)])
print(data.iloc[1].to_dict())

# %%
# Training
# --------
# Batches have pairs whose first and second tickets have similar lengths.

folder = Path(tempfile.mkdtemp(), "run")
keys = {"dim": 32, "heads": 4, "min_steps": 250, "per_device_train_batch_size": 32, "learning_rate": 0.01}
run = longspan.train("pairs", data=data, run=folder, depth=0, **keys)
print(f"accuracy: {run.scores['validation'].accuracy:.3f}")

# %%
# New tickets, each with each
# ---------------------------
# On the diagonal, two different tickets are about the same problem.

rows, columns = ([ticket(problem) for problem in PROBLEMS] for _ in range(2))
found = run.predict([{"first": one, "second": other} for one in rows for other in columns])
shares = np.array([one.probabilities["same"] for one in found]).reshape(len(rows), len(columns))
figure, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(PROBLEMS)), [*PROBLEMS], rotation=45, ha="right")
axes.set_yticks(range(len(PROBLEMS)), [*PROBLEMS])
axes.set(xlabel="second ticket", ylabel="first ticket")
figure.colorbar(shown, label="probability of the same problem")

# Take away: one encoder, two documents, one label; :doc:`/pairs` has the data, the model and its baseline.
