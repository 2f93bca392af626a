"""
A report of a run
=================

``longspan report`` writes one page about a run: its words, its errors, and the labels to check first. Here some of the
labels are wrong, and the report finds them.
"""

# %%
# Messages with wrong labels
# --------------------------
# Customers write about a delivery or a payment. Words of one subject occur in messages about the other, too. One label
# in twenty is wrong, as in many real data sets.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

numbers = np.random.default_rng(0)
WORDS = {
    "delivery": ["parcel", "courier", "late", "address", "box", "doorstep", "tracking number"],
    "payment": ["card", "refund", "charged", "invoice", "bank", "twice", "account number"],
}
COMMON = ["please", "I", "the", "my", "ordered", "yesterday", "help", "again", "number", "was", "and", "still", "not"]
CLASSES = list(WORDS)


def message(subject: str) -> str:
    """Return a message about a subject: three of its words, and perhaps one of the other subject."""
    other = CLASSES[1 - CLASSES.index(subject)]
    words = [*numbers.choice(WORDS[subject], 3), *numbers.choice(WORDS[other], numbers.integers(2))]
    words += list(numbers.choice(COMMON, 15))
    return " ".join(numbers.permutation(words))


right = [CLASSES[number % 2] for number in range(1000)]
texts = [message(subject) for subject in right]
swapped = numbers.random(len(right)) < 0.05
labels = [CLASSES[1 - CLASSES.index(label)] if wrong else label for label, wrong in zip(right, swapped, strict=True)]

# %%
# Train, and write the report
# ---------------------------
# The page is ``report.html`` in the run folder: one file, without scripts. On the command line, it is
# ``longspan report RUN``.

with tempfile.TemporaryDirectory() as folder:
    run = longspan.train(
        "classify",
        data={"text": texts, "label": labels},
        run=Path(folder, "run"),
        validation_fraction=0.3,
        dim=16,
        heads=2,
        depth=1,
        num_train_epochs=4,
        min_steps=0,
        max_minutes=0,
        progress=False,
    )
    report = run.report()
    size = Path(folder, "run", "report.html").stat().st_size
print(f"report.html: {size / 1000:.0f} kB, with {', '.join(report.figures)}")

# %%
# Words that speak for each class
# -------------------------------
# The score is what a word or phrase adds to the log-odds of its class, on average.

for label, words in report.words.by_class.items():
    print(label)
    for word in words[:6]:
        print(f"  {word.score:+.2f}  {word.text:16} in {word.documents:3} messages, as in “{word.before}{word.text}…”")

# %%
# Labels that are likely wrong
# ----------------------------
# The report lists messages whose label the model contradicts most. We know which labels are wrong, so we can count.

issues = report.evaluation.label_issues
rows = {text: number for number, text in enumerate(texts)}
found = [swapped[rows[issue.text]] for issue in issues.worst]
for issue, wrong in list(zip(issues.worst, found, strict=True))[:5]:
    print(f"{'wrong' if wrong else 'right'}: {issue.expected!r}, the model says {issue.said!r}: {issue.text[:60]} …")
print(f"{sum(found)} of {len(found)} listed labels are wrong; of all labels, {swapped.mean():.0%}")

# %%
# Calibration and errors
# ----------------------
# Left: the share of right answers by the probability of the answer. Right: the confusion matrix. Wrong labels count as
# errors in both.

scores = report.evaluation.scores
figure, (left, other) = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained")
middle = [(one["from"] + one["to"]) / 2 for one in scores.reliability]
left.bar(middle, [one["accuracy"] for one in scores.reliability], width=1 / 16, label="accuracy")
left.plot([0.5, 1], [0.5, 1], color="black", linewidth=0.8, label="perfectly calibrated")
left.set(xlabel="probability of the answer", xlim=(0.5, 1), ylim=(0, 1.25), title="Calibration")
left.legend(loc="upper left")
confusion = np.array(scores.confusion)
other.imshow(confusion, cmap="Blues")
other.set_xticks(range(2), CLASSES)
other.set_yticks(range(2), CLASSES)
other.set(xlabel="predicted", ylabel="label", title=f"Accuracy {scores.accuracy:.0%}")
for row, column in np.ndindex(confusion.shape):
    colour = "white" if confusion[row, column] > confusion.max() / 2 else "black"
    other.text(column, row, confusion[row, column], ha="center", va="center", color=colour)
plt.show()

# %%
# Take away: read a report before you trust a score. Its words say what the model has learned, and its list of labels
# where the data may be wrong. :doc:`/reports` has everything that a page shows.
