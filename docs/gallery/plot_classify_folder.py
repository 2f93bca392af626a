"""
Classify a folder of documents
==============================

A folder with one sub-folder of text files per class is all that the recipe ``classify`` needs. Here the documents are
source files, and the class is the Python package that they come from.
"""

# %%
# Documents in sub-folders
# ------------------------
# We copy forty files from each of six installed packages into a temporary folder. Lines that name a package are
# removed, because import statements would reveal the class.

import importlib.util
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

packages = ["datasets", "matplotlib", "numpy", "pyarrow", "sklearn", "transformers"]
folder = tempfile.TemporaryDirectory()
letters = Path(folder.name, "documents")

for package in packages:
    source = Path(importlib.util.find_spec(package).origin).parent
    files = [file for file in sorted(source.rglob("*.py")) if 2_000 < file.stat().st_size < 40_000]
    (letters / package).mkdir(parents=True)
    for number, file in enumerate(files[:: max(1, len(files) // 40)][:40]):
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not any(name in line.lower() for name in packages)]
        (letters / package / f"{number}.txt").write_text("\n".join(kept), encoding="utf-8")

for place in sorted(letters.iterdir()):
    print(f"{place.name:13} {len(list(place.iterdir()))} files")

# %%
# Train
# -----
# Keys of the recipe are arguments. A third of the files is held out for the final score. ``max_minutes=0`` switches off
# the time limit of the recipe, and ``min_steps=0`` its least number of steps.

run = longspan.train(
    "classify",
    data=letters,
    run=Path(folder.name, "run"),
    test_fraction=0.33,
    max_length=400,
    dim=32,
    num_train_epochs=4,
    min_steps=0,
    max_minutes=0,
    progress=False,
)
test = run.scores["test"]
print(f"accuracy on new files: {test.accuracy:.2f} (chance level: {1 / len(packages):.2f})")

# %%
# Accuracy of each part
# ---------------------
# The model adds a sequence model to a linear model over n-grams. ``evaluate`` scores each part alone: ``counts`` is the
# n-gram part, ``network`` the sequence model.

evaluation = run.evaluate()
parts = evaluation.details["parts"]
for name, accuracy in parts["values"].items():
    low, high = parts["intervals"][name]
    print(f"{name:8} accuracy {accuracy:.2f}, 95 % interval {low:.2f} to {high:.2f}")

# %%
# Confusion matrix
# ----------------

confusion = np.array(evaluation.scores.confusion)
figure, axes = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
axes.imshow(confusion, cmap="Blues")
axes.set_xticks(range(len(packages)), packages, rotation=45, ha="right")
axes.set_yticks(range(len(packages)), packages)
axes.set(xlabel="predicted", ylabel="true", title=f"Test files: accuracy {test.accuracy:.0%}")
for row, column in np.ndindex(confusion.shape):
    if count := confusion[row, column]:
        colour = "white" if count > confusion.max() / 2 else "black"
        axes.text(column, row, count, ha="center", va="center", color=colour)
plt.show()

# %%
# Take away: a folder per class is enough to train, and ``evaluate`` reports the accuracy of the n-grams alone. With
# few documents, n-grams do most of the work.
# The page :doc:`/labels` has all settings of ``classify``.
