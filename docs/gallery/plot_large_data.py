"""
Train on shards that are streamed
=================================

Training rows are read again in each pass, in blocks. Memory holds two blocks, however many shards there are.
"""

# %%
# Shards
# ------
# Twelve files, of a month each. Their class and words are generated.

import json
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan
from longspan.data.columns.kinds import Label, Text
from longspan.data.sources.loading import load
from longspan.data.sources.shards import ShardReader
from longspan.tasks.document_classification.options import ClassificationData

choose, folder = random.Random(0), Path(tempfile.mkdtemp())
WORDS = {"invoice": ["amount", "due", "total", "tax"], "letter": ["dear", "regards", "visit", "holiday"]}
COMMON = ["the", "and", "for", "please", "next", "week", "is", "ready"]
for month in range(12):
    with (folder / f"2026-{month + 1:02}.jsonl").open("w") as file:
        for number in range(1500):
            label = choose.choice(sorted(WORDS))
            words = [*choose.choices(WORDS[label], k=2), *choose.choices(COMMON, k=6), f"{month}.{number}"]
            choose.shuffle(words)
            file.write(json.dumps({"text": " ".join(words), "label": label}) + "\n")

# %%
# Training
# --------
# ``streaming`` is the only key. The sample for vocabulary and counts is small here.

run = longspan.train(
    "classify",
    data=str(folder),
    streaming=True,
    streaming_megabytes=0.1,
    max_steps=40,
    max_minutes=0,
    run=Path(tempfile.mkdtemp(), "run"),
    progress=False,
)
print(run.details["streaming"])
print(f"accuracy {run.scores['validation'].accuracy:.3f}")

# %%
# Order of the rows
# -----------------
# The reader takes turns between eight shards, so that each block mixes months.

columns = [Text("text", "text_column"), Label("label", "label_column")]
data = ClassificationData(path=str(folder), streaming=True, streaming_megabytes=0.1)
reader = ShardReader(load(data, columns).stream, seed=0)
months = [int(row.where[5:7]) for _ in range(2) for row in reader.block()]

figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.plot(months, ".", markersize=1)
axes.set(xlabel="row, in the order in which rows are read", ylabel="month", yticks=range(1, 13))
plt.show()

# %%
# Take away: one key streams what does not fit. :doc:`/guides/large-data` says what comes from a sample, and how stopped
# jobs continue.
