"""
Predict for a large file in constant memory
===========================================

``predict`` takes an iterator and returns one. It reads a limited number of rows ahead, so a file may be larger than
memory.
"""

# %%
# A model
# -------
# A small classifier for generated tickets.

import csv
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import psutil

import longspan

WORDS = {
    "billing": ["invoice", "refund", "price", "card", "receipt"],
    "login": ["password", "account", "mail", "code", "reset"],
    "delivery": ["parcel", "late", "address", "driver", "box"],
}
choose = random.Random(0)


def ticket() -> tuple[str, str]:
    """Return a ticket and its class."""
    label = choose.choice(list(WORDS))
    other = choose.choice([word for words in WORDS.values() for word in words])
    words = [*choose.choices(WORDS[label], k=2), other, *["hello", "please", "help", "me", "with", "this", "thanks"]]
    choose.shuffle(words)
    return " ".join(words), label


texts, labels = map(list, zip(*(ticket() for _ in range(600)), strict=True))
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
print(f"validation accuracy {run.scores['validation'].accuracy:.2f}")

# %%
# A large file
# ------------
# The generator yields one row after another, and counts them.

path = Path(folder.name, "tickets.csv")
ROWS = 25_000
with path.open("w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["number", "text", "label"])
    writer.writerows((number, *ticket()) for number in range(ROWS))

rows_read = 0


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file, and count them."""
    global rows_read
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows_read += 1
            yield row


# %%
# Predict, row by row
# -------------------
# Predictions are in the order of the rows. We write each to a file, and record memory and the rows read ahead.

process = psutil.Process()
done, ahead, streamed = [], [], []
start, before = time.perf_counter(), process.memory_info().rss
with Path(folder.name, "out.csv").open("w", encoding="utf-8") as out:
    for number, one in enumerate(run.predict(rows(path)), 1):
        out.write(f"{one.label}\n")
        if number % 250 == 0:
            done.append(number)
            ahead.append(rows_read - number)
            streamed.append((process.memory_info().rss - before) / 2**20)
seconds = time.perf_counter() - start
print(f"{number:,} predictions, {number / seconds:,.0f} per second")
print(f"at most {max(ahead):,} rows read ahead, {max(streamed):.0f} MiB more than before")

# %%
# The same with lists: all rows are read first, and all predictions are kept.

kept, listed = [], []
before = process.memory_info().rss
for number, one in enumerate(run.predict(iter(list(rows(path)))), 1):
    kept.append(one)
    if number % 250 == 0:
        listed.append((process.memory_info().rss - before) / 2**20)
print(f"with lists {max(listed):.0f} MiB more than before")

# %%
# Rows ahead and memory
# ---------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(done, ahead, linewidth=0.8)
left.axhline(ROWS, color="grey", linestyle=":", label="rows of the file")
left.set(xlabel="predictions", ylabel="rows read ahead", title="Rows in memory", yscale="log", ylim=(1, 10 * ROWS))
left.legend()
right.plot(done, streamed, label="iterator")
right.plot(done, listed, color="grey", label="lists")
right.set(
    xlabel="predictions", ylabel="MiB more than before", title="Memory of the process", ylim=(-0.05 * max(listed), None)
)
right.legend()
plt.show()

# %%
# Take away: pass an iterator to ``predict``, and write what it yields. A row that cannot be read has an ``error``
# instead of a prediction. ``longspan predict RUN FILE`` does the same: see :doc:`/tour`.
