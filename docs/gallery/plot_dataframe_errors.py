"""
Train on a DataFrame and look at the errors
===========================================

A DataFrame with the columns ``text`` and ``label`` is training data. Predictions come back in order, so that errors are
found with a few lines of pandas.
"""

# %%
# A DataFrame of docstrings
# -------------------------
# To which library does a docstring belong? We read the docstrings of five installed libraries, without their examples,
# and replace the names of the libraries.

import ast
import importlib.util
import re
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import longspan

LIBRARIES = {"matplotlib": "axes", "numpy": "", "pandas": "core", "sklearn": "", "torch": "nn"}


def docstrings(library: str, below: str, most: int = 240) -> list[str]:
    """Return the beginnings of docstrings of a library, without importing it."""
    found: dict[str, None] = {}
    folder = Path(importlib.util.find_spec(library).origin).parent / below
    for file in sorted(folder.rglob("*.py")):
        if "test" in str(file.relative_to(folder)):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                text = re.split(r"\n\s*(?:Examples?|See Also)\b", text)[0]
                text = re.sub("|".join(LIBRARIES), "library", text, flags=re.IGNORECASE)
                if len(text) >= 60:
                    found[" ".join(text.split()[:40])] = None
    return list(found)[:: max(1, len(found) // most)][:most]


frame = pd.DataFrame([(text, name) for name, below in LIBRARIES.items() for text in docstrings(name, below)])
frame.columns = ["text", "label"]
frame = frame.sample(frac=1, random_state=0).reset_index(drop=True)
train, test = frame[:-300], frame[-300:].reset_index(drop=True)
print(train.groupby("label").size())

# %%
# Train, and fit a baseline
# -------------------------

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "classify",
    data=train,
    run=Path(folder.name, "run"),
    dim=32,
    num_train_epochs=4,
    min_steps=0,
    max_minutes=0,
    progress=False,
)
baseline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=30))
baseline.fit(train.text, train.label)
print(f"longspan {run.evaluate(test).scores.accuracy:.3f}")
print(f"TF-IDF   {baseline.score(test.text, test.label):.3f}")

# %%
# The errors
# ----------
# ``to_dicts`` returns rows for a table. Read the most confident errors: they show wrong labels and missing information.

found = pd.DataFrame(run.predict(test.text).to_dicts())
test = test.assign(predicted=found.label, confidence=[max(each.values()) for each in found.probabilities])
test["right"] = test.label == test.predicted
for row in test[~test.right].sort_values("confidence", ascending=False)[:5].itertuples():
    print(f"{row.confidence:.2f}  true {row.label}, predicted {row.predicted}: {row.text[:90]}")

# %%
# Calibration
# -----------
# Of the predictions with a confidence of 0.8, eight of ten should be correct. Points below the diagonal show
# overconfidence. Bins with fewer than five predictions are left out.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
bins = np.linspace(0.2, 1, 9)
left.hist([test.confidence[test.right], test.confidence[~test.right]], bins, stacked=True, label=["correct", "wrong"])
left.set(xlabel="confidence", ylabel="docstrings", title="Confidence of 300 test predictions")
left.legend()
groups = test.groupby(pd.cut(test.confidence, bins), observed=True)
right.plot([0.2, 1], [0.2, 1], color="grey", linestyle=":", label="ideal")
filled = groups.size() >= 5
right.plot(groups.confidence.mean()[filled], groups.right.mean()[filled], marker="o", label="longspan")
right.set(xlabel="mean confidence", ylabel="accuracy", title="Calibration", ylim=(0, 1.05))
right.legend()
plt.show()

# %%
# Take away: keep the predictions next to the texts, and read the most confident errors first.
# The guide :doc:`/guides/in-memory` has the other kinds of data, and :doc:`/labels` the model and its scores.
