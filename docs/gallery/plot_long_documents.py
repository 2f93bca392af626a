"""
Long documents: which part matters?
===================================

``max_length`` and ``keep`` select the part of a document that the model reads. With linear cost, it can read the full
document. Occlusion then shows what a prediction depends on.
"""

# %%
# Letters with a decision near the end
# ------------------------------------
# A letter has 400 words. A sentence in its last third grants or refuses a request. Decisions about other requests come
# earlier.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

choose = random.Random(0)
FILLERS = [f"word{number}" for number in range(300)]
LENGTH = 400


def letter(label: str) -> list[str]:
    """Return the words of a letter."""
    words = choose.choices(FILLERS, k=LENGTH)
    for _ in range(4):
        place = choose.randrange(0, 250)
        words[place : place + 3] = ["others", "were", choose.choice(["granted", "refused"])]
    place = choose.randrange(270, 390)
    words[place : place + 4] = ["your", "request", "is", label]
    return words


labels = choose.choices(["granted", "refused"], k=450)
letters = [letter(label) for label in labels]
train = {"text": [" ".join(words) for words in letters[:300]], "label": labels[:300]}
test = {"text": [" ".join(words) for words in letters[300:]], "label": labels[300:]}

# %%
# Read a part, or all
# -------------------
# ``keep`` selects the first or the last ``max_length`` tokens. Nothing is cut silently: predictions report how many
# tokens were read.

settings = {
    "first 150": {"max_length": 150, "keep": "first"},
    "last 75": {"max_length": 75, "keep": "last"},
    "last 150": {"max_length": 150, "keep": "last"},
    "all": {"max_length": 0},
}
folder = tempfile.TemporaryDirectory()
runs, accuracies = {}, {}
for name, chosen in settings.items():
    runs[name] = longspan.train(
        "classify",
        data=train,
        run=Path(folder.name, name.replace(" ", "-")),
        wide=False,
        pooling="max",
        short_convolution=4,
        dim=32,
        heads=4,
        token_dropout=0.0,
        num_train_epochs=10,
        min_steps=0,
        max_minutes=0,
        progress=False,
        **chosen,
    )
    accuracies[name] = runs[name].evaluate(test).scores.accuracy
    one = runs[name].predict(test["text"][:1])[0]
    print(f"{name:10} accuracy {accuracies[name]:.2f}, tokens read {one.tokens_read or 'all'}")

# %%
# Occlusion
# ---------
# We omit ten words at a time, and measure the drop in the probability of the class.

run, number = runs["all"], 300
words, label = letters[number], labels[number]
whole = run.predict([" ".join(words)])[0].probabilities[label]
starts = range(0, LENGTH, 10)
without = [" ".join(words[:start] + words[start + 10 :]) for start in starts]
drops = np.array([whole - one.probabilities[label] for one in run.predict(without)])
most = int(np.argmax(drops)) * 10
print(f"{label}: {whole:.2f}; largest drop without: {' '.join(words[most : most + 10])}")

# %%
# Accuracy by part, and the drops in one letter
# ---------------------------------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), width_ratios=[2, 3], layout="constrained")
bars = left.bar(list(accuracies), list(accuracies.values()), color=["grey", "grey", "tab:blue", "tab:blue"])
left.bar_label(bars, fmt="%.2f")
left.axhline(0.5, color="black", linestyle=":", label="chance level")
left.set(ylabel="test accuracy", ylim=(0, 1.15), xlabel="tokens read", title="Accuracy by part")
left.legend()
right.bar(list(starts), drops, width=9, align="edge", label="drop without ten words")
place = words.index("request")
right.axvspan(place - 1, place + 3, color="tab:green", alpha=0.4, label="the decision")
right.set(xlabel="position in the letter, words", ylabel="drop in probability", title="One letter, ten words omitted")
right.legend(loc="upper left")
plt.show()

# %%
# Take away: find out where the evidence is before you cut documents, or read them in full. The guide
# :doc:`/guides/long-documents` has the keys. Occlusion works with any classifier, and needs a pass for each part.
