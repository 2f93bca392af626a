"""
Predict batches in any engine
=============================

``Predictor`` takes a batch and returns its predictions. It can be pickled, so Ray, Spark and ``datasets`` send it to
their processes, each of which loads the run once.
"""

# %%
# A model
# -------
# A small classifier for generated tickets, and tickets of ten days. On the seventh, deliveries are late.

import pickle
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from datasets import Dataset

import longspan

WORDS = {
    "billing": ["invoice", "refund", "price", "card", "receipt"],
    "login": ["password", "account", "mail", "code", "reset"],
    "delivery": ["parcel", "late", "address", "driver", "box"],
}
choose = random.Random(0)


def ticket(weights: list[int]) -> tuple[str, str]:
    """Return a ticket and its class."""
    (label,) = choose.choices(list(WORDS), weights)
    words = [*choose.choices(WORDS[label], k=3), *["hello", "please", "help", "me", "with", "this"]]
    choose.shuffle(words)
    return " ".join(words), label


texts, labels = map(list, zip(*(ticket([1, 1, 1]) for _ in range(400)), strict=True))
folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "classify",
    data=(texts, labels),
    run=Path(folder.name, "run"),
    dim=16,
    heads=4,
    wide=False,
    num_train_epochs=6,
    min_steps=0,
    max_minutes=0,
    progress=False,
)
days = [(day, ticket([2, 2, 9 if day == 7 else 1])[0]) for day in range(1, 11) for _ in range(200)]
tickets = pd.DataFrame(days, columns=["day", "text"])
tickets.loc[5, "text"] = ""
tickets.to_csv(Path(folder.name, "tickets.csv"), index=False)

# %%
# One batch
# ---------
# A DataFrame gives a DataFrame, with the columns that ``longspan predict --output`` writes. ``keep`` repeats a column
# next to them. A row without a text has an ``error``.

predictor = longspan.Predictor(run, keep=["day"])
print(predictor(tickets[:6])[["day", "label", "error"]])

# %%
# In an engine
# ------------
# Pickled, it is a path and options. The model is loaded where it is called.

print(len(pickle.dumps(predictor)), "bytes")

# %%
# ``datasets`` calls it for batches of 500 rows; ``num_proc=4`` would do so in four processes.

rows = Dataset.from_csv(str(Path(folder.name, "tickets.csv")), cache_dir=folder.name)
found = rows.with_format("arrow").map(predictor, batched=True, batch_size=500, remove_columns=rows.column_names)
frame = found.to_pandas()
print(frame["error"].notna().sum(), "of", len(frame), "rows have an error")

# %%
# Tickets by day
# --------------

shares = frame.groupby("day")["label"].value_counts(normalize=True).unstack()
axes = shares.plot.bar(stacked=True, figsize=(8, 3.6), width=0.8, rot=0)
axes.set(xlabel="day", ylabel="share of tickets", title="Predicted classes")
axes.legend(title="", loc="upper left", bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

# %%
# Take away: pass a ``Predictor`` to ``map_batches`` of Ray, ``mapInPandas`` of Spark or ``map`` of ``datasets``;
# ``longspan predict --jobs N`` needs none of them. See :doc:`/guides/batch-prediction`.
