"""
Recommend from a click log
==========================

A click log has a row for each title shown to a user: ``user``, ``title``, ``clicked`` and ``time``. The recipe ``news``
ranks titles by how likely the user clicks them.
"""

# %%
# A click log
# -----------
# Each user likes two of six subjects. A title has two of the 25 words of its subject, and two noise words. Titles about
# the same subject seldom share a word.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import longspan

SUBJECTS = ["sport", "food", "money", "music", "travel", "health"]
numbers = np.random.default_rng(0)
rows = []
for user in range(500):
    liked = set(numbers.choice(SUBJECTS, 2, replace=False))
    for time in range(6):
        for _ in range(5):
            subject = str(numbers.choice(SUBJECTS))
            own = [f"{subject}{number}" for number in numbers.choice(25, 2, replace=False)]
            other = [f"word{number}" for number in numbers.choice(40, 2, replace=False)]
            clicked = numbers.random() < (0.7 if subject in liked else 0.08)
            title = " ".join([*other[:1], *own, *other[1:]])
            rows.append({"user": f"u{user}", "title": title, "clicked": int(clicked), "time": time})
log = pd.DataFrame(rows)
train, validation, test = log[log.time < 4], log[log.time == 4], log[log.time == 5]
print(log.head(3).to_string(index=False))
print(f"{len(train):,} rows to train on, {len(test):,} to test")

# %%
# Train, and fit a baseline
# -------------------------
# The splits are in order of time. A history holds the earlier clicks of a user.

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "news",
    data={"train": train, "validation": validation, "test": test},
    run=Path(folder.name, "run"),
    dim=32,
    dropout=0.0,
    num_train_epochs=12,
    per_device_train_batch_size=128,
    learning_rate=1e-2,
    progress=False,
)
comparison = longspan.compare(
    "news",
    data={"train": train, "validation": validation, "test": test},
    run=Path(folder.name, "baselines"),
    baselines=["tfidf"],
)
scores = {"longspan": run.scores["test"]} | {one.baseline: one.scores["test"] for one in comparison.baselines}
for name, found in scores.items():
    print(f"{name:9} AUC {found.auc:.3f}   nDCG@5 {found.ndcg_5:.3f}")

# %%
# A ranking
# ---------
# ``predict`` returns the ranked candidates, each with its score.

history = train[train.user.eq("u0") & train.clicked.eq(1)]
print("clicked before:", "; ".join(history.title[:5]))
shown = pd.concat([train, validation, test])
shown = shown[shown.user.eq("u0")]
ranking = run.predict(shown)[-1].ranking
for item in ranking:
    print(f"{item['score']:6.2f}  {item['title']}")

# %%
# Word embeddings and AUC
# -----------------------
# Embeddings of words of the same subject should be similar, although the log does not contain the subjects. The figure
# has the mean cosine of all pairs of different words.

words = [f"{subject}{number}" for subject in SUBJECTS for number in range(25)]
tokens = [run.processor.tokenizer(word)["input_ids"][0] for word in words]
vectors = run.model.get_input_embeddings().weight.detach().cpu().numpy()[tokens]
vectors = vectors - vectors.mean(0)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
cosines = vectors @ vectors.T
np.fill_diagonal(cosines, np.nan)
means = np.nanmean(cosines.reshape(6, 25, 6, 25), axis=(1, 3))
print(f"same subject {means.diagonal().mean():.2f}, different subjects {means[~np.eye(6, dtype=bool)].mean():.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
picture = left.imshow(means, cmap="RdBu_r", vmin=-0.3, vmax=0.3)
left.set_xticks(range(6), SUBJECTS, rotation=45)
left.set_yticks(range(6), SUBJECTS)
left.set(title="Similarity of word embeddings")
figure.colorbar(picture, ax=left, label="mean cosine")
bars = right.bar(list(scores), [found.auc for found in scores.values()], color=["tab:blue", "grey"])
right.bar_label(bars, fmt="%.2f")
right.axhline(0.5, color="black", linestyle=":", label="random order")
right.set(ylabel="AUC", ylim=(0, 1), title="Last impression of 500 users")
right.legend()
plt.show()

# %%
# Take away: a model learns from clicks which words belong together. TF-IDF matches equal words only.
# On real logs TF-IDF can win: also fit the baselines of :doc:`/recommendation`.
