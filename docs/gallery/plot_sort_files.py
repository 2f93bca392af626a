"""
Sort files, and leave the unsure ones
=====================================

A classifier sorts source files by the package they are from. It leaves out labels that would be wrong too often, and
says which files are unlike anything it was trained with.
"""

# %%
# Train
# -----
# Files of four installed packages, without the lines that name a package.

import importlib.util
import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

packages = ["datasets", "numpy", "sklearn", "transformers"]
folder = tempfile.TemporaryDirectory()
documents, inbox = Path(folder.name, "documents"), Path(folder.name, "inbox")
inbox.mkdir()

for package in packages:
    source = Path(importlib.util.find_spec(package).origin).parent
    files = [file for file in sorted(source.rglob("*.py")) if 2_000 < file.stat().st_size < 40_000]
    (documents / package).mkdir(parents=True)
    for number, file in enumerate(files[:: max(1, len(files) // 80)][:80]):
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not any(name in line.lower() for name in packages)]
        # A quarter of the files is to be sorted.
        place = documents / package if number % 4 else inbox
        (place / f"{package}-{number}.py").write_text("\n".join(kept), encoding="utf-8")

settings = {"max_length": 400, "dim": 32, "num_train_epochs": 4, "min_steps": 0, "max_minutes": 0}
run = longspan.train(
    "classify", data=documents, run=Path(folder.name, "run"), validation_fraction=0.4, progress=False, **settings
)

# %%
# Choose how sure a label must be
# -------------------------------
# On the validation files, nine of ten labels of each class shall be right.

chosen = longspan.evaluate(run.folder, precision=0.9).details["least_probabilities"]
least = {name: math.inf if row["min_probability"] is None else row["min_probability"] for name, row in chosen.items()}
for name, row in chosen.items():
    print(f"{name:13} from {least[name]:.2f}: {row['given']:2} files, recall {row['recall']:.2f}")

# %%
# Sort
# ----
# A letter is in the inbox by mistake.

(inbox / "letter.txt").write_text(
    "Liebe Tante, vielen Dank für den Kuchen. Er war köstlich! Dein Neffe", encoding="utf-8"
)
found = longspan.predict(run.folder, str(inbox), min_probability=least, sort_into=Path(folder.name, "sorted"))
table = found.to_pandas()
print(table[table["unfamiliar"].notna()][["where", "label", "unfamiliar"]].to_string(index=False))

# %%
# The folders
# -----------

sorted_files = {place.name: len(list(place.iterdir())) for place in sorted(Path(folder.name, "sorted").iterdir())}
given = table.dropna(subset="label")
right = given["where"].str.extract(r"([a-z]+)-\d+")[0] == given["label"]
print(f"{len(given)} of {len(table)} files have a label, {right.mean():.0%} of these are right")

fig, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
axes.barh(list(sorted_files), list(sorted_files.values()))
axes.set_xlabel("files")
axes.invert_yaxis()
fig.show()
folder.cleanup()

# %%
# Take away: ``evaluate --precision`` chooses how sure a label must be, and ``predict --sort-into`` copies files into
# folders of their labels. :doc:`/guides/predictions` has both, and tables.
