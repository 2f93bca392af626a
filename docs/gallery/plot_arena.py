"""
Find out which mixers need their long range
===========================================

``longspan arena`` compares mixers on the tasks of the Long Range Arena. Here are two of its tasks, and a small
comparison.
"""

# %%
# The data
# --------
# ListOps and Pathfinder are generated. The sizes are small here; ``longspan arena`` writes the published ones.

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan
from longspan.challenges import CHALLENGES

folder = Path(tempfile.mkdtemp())
for name, train in (("listops", 400), ("pathfinder", 8)):
    sizes = {"train": train, "validation": 50, "test": 200}
    CHALLENGES[name].write(folder / "data" / name, None, sizes=sizes)


def examples(name: str) -> list[dict[str, str]]:
    """Return the training examples of a task."""
    lines = (folder / "data" / name / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


first = examples("listops")[0]
print(f"{first['text'][:60]} ... is {first['label']}")

# %%
# Are the two circles connected?

figure, places = plt.subplots(1, 4, figsize=(8, 2.2), layout="constrained")
for place, example in zip(places, examples("pathfinder"), strict=False):
    place.imshow(np.array(example["text"].split(), int).reshape(32, 32), cmap="gray")
    place.set_title("connected" if example["label"] == "1" else "not connected", fontsize=9)
    place.set_axis_off()
plt.show()

# %%
# A comparison of seconds
# -----------------------
# Data that are in the folder are kept. A control of short convolutions is added.

small = ["model.dim=32", "model.depth=1", "training.num_train_epochs=1"]
result = longspan.arena(["messages"], ["listops"], small, folder, minutes=1, pretrain=False)
for run in result.runs:
    print(f"{run.run.mixer}: {run.score:.2f}")

# %%
# Such short trainings learn how often each value occurs, and nothing of the expressions. Take an hour for each.

# %%
# Take away: before you praise a mixer for its long range, look at what short convolutions reach.
# :doc:`/arena` has the tasks, the data and the three comparisons.
