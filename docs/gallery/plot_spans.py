"""
Named entities from an annotation tool, and back
================================================

spaCy, Prodigy, Label Studio and doccano write texts with spans: the first character, the one after the last, and a
label. The recipe ``ner`` trains on such files and writes predictions that these tools import.
"""

# %%
# Texts with spans
# ----------------
# The form of spaCy: one object per line. The sentences are generated.

import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt

import longspan
from longspan.errors import UserError

choose = random.Random(0)
NAMES, CITIES = ["Ann Lee", "Bo Berg", "Cy Day", "Di Fox", "Eve Gill", "Al Hall"], ["Rome", "Oslo", "New York", "Köln"]
PATTERNS = ["{PER} moved to {LOC} .", "In {LOC}, {PER} met {PER}.", "It rains in {LOC}, said {PER}.", "Who lives here?"]


def annotated() -> dict[str, object]:
    """Return a text with its spans."""
    text, entities = "", []
    for part in choose.choice(PATTERNS).replace("{", "|").replace("}", "|").split("|"):
        added = choose.choice({"PER": NAMES, "LOC": CITIES}.get(part, [part]))
        if added != part:
            entities.append([len(text), len(text) + len(added), part])
        text += added
    return {"text": text, "entities": entities}


folder = tempfile.TemporaryDirectory()
train, new = Path(folder.name, "train.jsonl"), Path(folder.name, "new.jsonl")
rows = [annotated() for _ in range(150)]
train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
print(rows[0])

# %%
# Train
# -----

settings = {"dim": 32, "heads": 4, "num_train_epochs": 6, "progress": False}
run = longspan.train("ner", data=train, run=Path(folder.name, "run"), **settings)
print(f"F1 on the validation split: {run.scores['validation'].f1:.3f}")

# %%
# Predictions for Label Studio
# ----------------------------
# On the command line: ``longspan predict RUN new.jsonl --format label-studio --output tasks.json``. The other formats
# are ``spacy``, ``prodigy`` and ``doccano``.

found = run.predict([row["text"] for row in [annotated() for _ in range(30)]])
print(json.dumps(json.loads(found[0].annotated("label-studio")), indent=1, ensure_ascii=False)[:600])

# %%
# A span that ends inside a word
# ------------------------------
# Nothing is mended or left out silently. The message names the place.

wrong = {"text": "Ann Lee moved to Rome.", "entities": [[0, 5, "PER"]]}
try:
    longspan.train("ner", data=[*rows, wrong], run=Path(folder.name, "other"), **settings)
except UserError as error:
    print(error)

# %%
# Labels that were found
# ----------------------

counts = Counter((span["type"], span["text"]) for one in found for span in one.spans).most_common(10)
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
colours = {"PER": "tab:blue", "LOC": "tab:orange"}
axes.barh(
    [text for (_, text), _ in counts], [count for _, count in counts], color=[colours[kind] for (kind, _), _ in counts]
)
axes.invert_yaxis()
axes.set(xlabel="times in 30 texts", title="Persons (blue) and places (orange)")
plt.show()

# %%
# Take away: files of annotation tools go in and out without conversion. :doc:`/token-classification` has the forms.
