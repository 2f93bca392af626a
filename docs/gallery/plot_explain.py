"""
Which words decide, and a check
===============================

A classifier is right, but for which words? ``explain`` scores each word, and deletes the strongest to see whether the
prediction follows.
"""

# %%
# Complaints in long messages
# ---------------------------
# One phrase of two words decides in sixty words of noise. Each of its words alone also occurs in other messages.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

numbers = np.random.default_rng(0)
NOISE = np.array([f"word{number}" for number in range(50)] + ["water", "damage"])


def message(complaint: bool) -> tuple[str, str]:
    """Return a message and its label."""
    words = list(numbers.choice(NOISE, 60))
    if complaint:
        words[numbers.integers(60)] = "water damage"
    return " ".join(words), "complaint" if complaint else "other"


texts, labels = zip(*(message(number % 2 == 0) for number in range(1500)), strict=True)
with tempfile.TemporaryDirectory() as folder:
    run = longspan.train(
        "classify",
        data={"text": list(texts), "label": list(labels)},
        run=Path(folder, "run"),
        wide=False,
        dim=32,
        heads=4,
        depth=1,
        short_convolution=3,
        num_train_epochs=20,
        min_steps=0,
        max_minutes=0,
        progress=False,
    )
    print(f"validation accuracy {run.scores['validation'].accuracy:.2f}")
    text, _ = message(True)
    found = run.explain(text, of="complaint", check=True)

# %%
# Scores of words
# ---------------
# The phrase stands out, and its words elsewhere hardly do.

words = found.pieces()
for word in sorted(words, key=lambda word: -word.score)[:4]:
    print(f"{word.score:+.2f}  {text[max(0, word.start - 20) : word.end + 10]}")

figure, axes = plt.subplots(figsize=(6.2, 3), layout="constrained")
scores = np.array([word.score for word in words])
axes.bar(range(len(words)), scores, color=np.where(scores > 0, "tab:blue", "tab:orange"), width=1)
axes.axhline(0, color="black", linewidth=0.6)
axes.set(xlabel="word", ylabel=f"score ({found.unit})", title=f"What speaks for “{found.of}”")
plt.show()

# %%
# The check
# ---------
# Without the highest scores, the probability falls (comprehensiveness, more is better). With these alone it stays
# (sufficiency, less is better).

for method, check in found.checks.items():
    print(f"{method:10} comprehensiveness {check['comprehensiveness']:.2f}   sufficiency {check['sufficiency']:+.2f}")

# %%
# Take away: a score is a claim about the model, and deletions test it. :doc:`/explanations` says what scores can mean.
