"""
Label the words of a text
=========================

The recipe ``ner`` finds persons, places and dates in sentences. Some words have several meanings, and many names in the
test set do not occur in training.
"""

# %%
# Sentences with labels
# ---------------------
# The sentences are generated, and so are the names, from the same syllables for persons and places. "May" is a person
# or a month, "Paris" a person or a city. Half of the names occur only in the test set.

import itertools
import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

choose = random.Random(0)
NAMES = [
    "".join(parts).title() for parts in itertools.product(["ba", "do", "fi", "ke", "lu", "mo", "ra", "si"], repeat=3)
]
choose.shuffle(NAMES)
PERSONS, PLACES = [*NAMES[:200], "May", "Paris"], [*NAMES[200:400], "Paris"]
MONTHS = ["January", "March", "April", "May", "June", "August", "October"]
PATTERNS = [
    "{person} moved to {place} in {month} .",
    "In {month} , {person} and {person} left {place} .",
    "It will rain in {place} until {month} , said {person} .",
    "{person} may visit {place} if {person} stays .",
    "The office in {place} closes in {month} .",
    "Ask {person} about {month} , not {person} .",
    "From {place} to {place} by train , {person} will pay .",
]
KINDS = {"person": "PER", "place": "LOC", "month": "DATE"}


def sentence(words: dict[str, list[str]], choose: random.Random) -> dict[str, list[str]]:
    """Return a sentence as words, each with its label."""
    tokens, labels = [], []
    for token in choose.choice(PATTERNS).split():
        kind = token.strip("{}")
        tokens.append(choose.choice(words[kind]) if kind in KINDS else token)
        labels.append(f"B-{KINDS[kind]}" if kind in KINDS else "O")
    return {"tokens": tokens, "labels": labels}


everything = {"person": PERSONS, "place": PLACES, "month": MONTHS}
for kind in ("person", "place"):
    # Ambiguous names are drawn more often.
    everything[kind] = everything[kind] + [word for word in ("May", "Paris") if word in everything[kind]] * 15
known = {kind: words[::2] if kind != "month" else words for kind, words in everything.items()}
train = [sentence(known, choose) for _ in range(300)]
test = [sentence(everything, choose) for _ in range(200)]
print(" ".join(f"{word}/{label}" for word, label in zip(train[0]["tokens"], train[0]["labels"], strict=True)))

# %%
# Train
# -----

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "ner", data=train, run=Path(folder.name, "run"), dim=32, num_train_epochs=8, batch_tokens=512, progress=False
)
scores = run.evaluate(test).scores
print(f"F1 {scores.f1:.3f}")

# %%
# Compare with the most frequent label of each word
# -------------------------------------------------
# The baseline gives each word the label that it has most often in training, and "O" to new words.

counts: dict[str, Counter[str]] = defaultdict(Counter)
for row in train:
    for word, label in zip(row["tokens"], row["labels"], strict=True):
        counts[word][label] += 1
guesses = [[counts[word].most_common(1)[0][0] if word in counts else "O" for word in row["tokens"]] for row in test]
predicted = [one.labels for one in run.predict([{"tokens": row["tokens"]} for row in test])]

ambiguous = {word for word, seen in counts.items() if len(seen) > 1}
right: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
for row, ours, theirs in zip(test, predicted, guesses, strict=True):
    for word, label, mine, guess in zip(row["tokens"], row["labels"], ours, theirs, strict=True):
        if label != "O":
            group = "ambiguous" if word in ambiguous else "known" if word in counts else "new"
            right[group].append((mine == label, guess == label))

groups = ["known", "ambiguous", "new"]
shares = np.array([np.mean(right[group], axis=0) for group in groups])
for group, (ours, theirs) in zip(groups, shares, strict=True):
    print(f"{group:10} {len(right[group]):4} words   longspan {ours:.2f}   most frequent label {theirs:.2f}")

# %%
# Accuracy of known, ambiguous and new words
# ------------------------------------------

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
places = np.arange(len(groups))
for shift, column, name in ((-0.2, 0, "longspan"), (0.2, 1, "most frequent label")):
    bars = axes.bar(places + shift, shares[:, column], 0.38, label=name)
    axes.bar_label(bars, fmt="%.2f")
axes.set_xticks(places, [f"{group}\n({len(right[group])} words)" for group in groups])
axes.set(ylabel="accuracy", ylim=(0, 1.25), title="Words with a label, by what training contains")
axes.legend(loc="upper right", ncols=2)
plt.show()

# %%
# Take away: the tagger uses the words around a name, so it also labels new names.
# These sentences follow seven patterns; real texts are harder. The page :doc:`/token-classification` has the formats.
