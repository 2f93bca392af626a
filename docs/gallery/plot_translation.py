"""
Translate and read n-best lists
===============================

The recipe ``translation`` trains an encoder and a decoder. Here it learns the words of another language,
and their order.
"""

# %%
# Pairs of texts
# --------------
# A list of pairs will do: the source first, then the target.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

NOUNS = {"dog": "chien", "cat": "chat", "bird": "oiseau", "horse": "cheval", "bear": "ours", "wolf": "loup"}
COLOURS = {"red": "rouge", "black": "noir", "grey": "gris", "white": "blanc", "blue": "bleu"}
VERBS = {"eats": "mange", "sleeps": "dort", "sings": "chante", "runs": "court"}


def pair(choose: random.Random) -> tuple[str, str]:
    """Return a sentence and its translation, in which the colour follows the noun."""
    noun, colour, verb = (choose.choice([*words]) for words in (NOUNS, COLOURS, VERBS))
    times = choose.randint(2, 9)
    source = f"The {colour} {noun} {verb} {times} times."
    return source, f"Le {NOUNS[noun]} {COLOURS[colour]} {VERBS[verb]} {times} fois."


choose = random.Random(0)
every = sorted({pair(choose) for _ in range(5000)})
pairs = choose.sample(every, 600)
print(*pairs[0], sep=" -> ")

# %%
# Train
# -----

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "translation",
    data=pairs,
    run=Path(folder.name, "run"),
    dim=48,
    depth=1,
    heads=2,
    feed_forward_dim=96,
    short_convolution=3,
    dropout=0.0,
    vocab_size=340,
    learning_rate=1e-2,
    warmup_steps=40,
    batch_tokens=1024,
    num_train_epochs=30,
    min_steps=0,
    progress=False,
)
scores = run.scores["validation"]
print(f"BLEU {scores.bleu:.1f}, chrF {scores.chrf:.1f}")
print(scores.signatures["bleu"])

# %%
# Translate
# ---------
# ``beams`` sets the width of the search, ``best`` the number of translations. A score is a mean log probability.

unseen = [source for source, _ in every if source not in dict(pairs)][:2]
for found in run.predict(unseen, beams=4, best=2):
    for one in found.alternatives:
        print(f"{one['translation']}  {one['score']:.3f}")

# %%
# The learning curve
# ------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
evaluated = [row for row in run.history if "validation_loss" in row]
left.plot([row["epoch"] for row in evaluated], [row["validation_loss"] for row in evaluated], marker="o")
left.set(xlabel="epoch", ylabel="nats per target token", title="validation loss")
right.plot([row["epoch"] for row in evaluated], [row["validation_bleu"] for row in evaluated], marker="o")
right.set(xlabel="epoch", ylabel="BLEU", ylim=(0, 100), title="greedy translations")
plt.show()

# %%
# Take away: any pairs of texts will do, and every translation has a score.
# The page :doc:`/translation` has parallel files, beams and baselines.
