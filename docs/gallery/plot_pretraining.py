"""
Pretrain on unlabelled text, then fine-tune
===========================================

Unlabelled text is cheap. The recipe ``masked-words`` pretrains a model by masked language modelling, and ``start_from``
fine-tunes it on few labels.
"""

# %%
# Much text, few labels
# ---------------------
# Six subjects have 50 words each. About eight of the twelve words of a text are from its subject. With few labelled
# texts, most words never occur in them.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

choose = random.Random(0)
SUBJECTS = ["sport", "food", "money", "music", "travel", "health"]
OTHER = [f"word{number}" for number in range(60)]


def text(subject: str) -> str:
    """Return a text about a subject."""
    own = [f"{subject}{number}" for number in range(50)]
    return " ".join(choose.choice(own if choose.random() < 2 / 3 else OTHER) for _ in range(12))


unlabelled = [text(choose.choice(SUBJECTS)) for _ in range(3000)]
pool = [(text(subject), subject) for subject in SUBJECTS * 8]
validation = [(text(subject), subject) for subject in SUBJECTS * 10]
test = [(text(subject), subject) for subject in SUBJECTS * 60]
print(unlabelled[0])

# %%
# Pretrain
# --------
# The tokens are whole words. Texts are packed into rows of 256 tokens.

folder = tempfile.TemporaryDirectory()
pretrained = longspan.train(
    "masked-words",
    data=unlabelled,
    run=Path(folder.name, "masked"),
    tokens="words",
    mixers=["linear"],
    dim=32,
    heads=4,
    depth=1,
    short_convolution=0,
    num_train_epochs=15,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    progress=False,
)
words = 50 * len(SUBJECTS) + len(OTHER)
print(f"validation perplexity {pretrained.scores['validation'].perplexity:.0f}, with {words} words")

# %%
# It predicts masked words. It has learned which words belong to a subject, although no text has a label.

words = text("music").split()
words[5] = "<mask>"
(filled,) = pretrained.predict([" ".join(words)])
print(" ".join(words))
print("filled in:", ", ".join(f"{one['token']} {one['probability']:.3f}" for one in filled.masks[0]["tokens"]))

# %%
# Fine-tune
# ---------
# The same classifier is trained from scratch and from the pretrained run, with one to eight labels per subject. Sixty
# more labelled texts are the validation split of both.

amounts = [1, 2, 4, 8]
accuracies: dict[str, list[float]] = {"from scratch": [], "start_from": []}
for amount in amounts:
    few = pool[: amount * len(SUBJECTS)]
    for name in accuracies:
        start = (
            {"start_from": pretrained.folder} if name == "start_from" else {"mixers": ["linear"], "dim": 32, "heads": 4}
        )
        run = longspan.train(
            "classify",
            data={"train": few, "validation": validation},
            run=Path(folder.name, f"{name} {amount}"),
            wide=False,
            token_dropout=0.0,
            pooling="mean",
            num_train_epochs=20,
            per_device_train_batch_size=8,
            min_steps=0,
            max_minutes=0,
            progress=False,
            **start,
        )
        accuracies[name].append(run.evaluate(test).scores.accuracy)
    print(f"{amount} per subject: " + ", ".join(f"{name} {values[-1]:.2f}" for name, values in accuracies.items()))

# %%
# Accuracy by the number of labels
# --------------------------------

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, values), marker in zip(accuracies.items(), "so", strict=True):
    axes.plot(amounts, values, marker=marker, label=name)
axes.axhline(1 / len(SUBJECTS), color="grey", linestyle=":", label="chance level")
axes.set_xscale("log", base=2)
axes.set_xticks(amounts, amounts)
axes.set(xlabel="labelled texts per subject", ylabel="accuracy on 360 new texts", ylim=(0, 1.02))
axes.set_title("With and without 3,000 unlabelled texts")
axes.legend(loc="lower right")
plt.show()

# %%
# Take away: with few labels, start from a model that is pretrained on unlabelled text of the same kind.
# The page :doc:`/pretraining` lists the weights that are copied, and how to freeze layers.
