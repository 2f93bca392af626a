"""
Compare mixers with a baseline
==============================

``compare`` trains several mixers on one recipe and fits baselines to the same splits. Each run has a process of its
own, so that its memory can be measured.
"""

# %%
# Texts in which order matters
# ----------------------------
# All documents contain "alpha" and "beta". The class is the one that comes first. Word counts do not contain this
# order. Three documents of ten have a further word that depends on the class, which word counts can use.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import longspan

choose = random.Random(0)
NOISE = [f"word{number}" for number in range(50)]


def document() -> tuple[str, str]:
    """Return a document and its class."""
    label = choose.choice(["alpha", "beta"])
    first, second = ("alpha", "beta") if label == "alpha" else ("beta", "alpha")
    words = choose.choices(NOISE, k=choose.randint(20, 60))
    places = sorted(choose.sample(range(len(words)), 2))
    words[places[0]], words[places[1]] = first, second
    if choose.random() < 0.3:
        words[choose.randrange(len(words))] = f"hint{label}"
    return " ".join(words), label


frame = pd.DataFrame([document() for _ in range(800)], columns=["text", "label"])

# %%
# Compare
# -------
# One seed each, so differences of a few hundredths are noise: use ``seeds=3`` or more for results. Other jobs share the
# processor, so times are rough.

with tempfile.TemporaryDirectory() as folder:
    comparison = longspan.compare(
        "classify",
        mixers=["additive", "softmax"],
        baselines=["tfidf"],
        seeds=1,
        data=frame,
        run=Path(folder, "compared"),
        test_fraction=0.25,
        position="learned",
        max_length=64,
        dim=32,
        heads=4,
        wide=False,
        token_dropout=0.0,
        num_train_epochs=10,
        min_steps=0,
        max_minutes=0,
    )
    table = pd.DataFrame(
        [
            {
                "model": one.mixer,
                "accuracy": one.scores["test"]["accuracy"].mean,
                "seconds": one.seconds.mean,
                "parameters": one.parameters,
            }
            for one in comparison.summary
        ]
        + [
            {
                "model": one.baseline,
                "accuracy": one.scores["test"].accuracy,
                "seconds": one.seconds,
                "parameters": one.parameters,
            }
            for one in comparison.baselines
        ]
    ).set_index("model")
print(table.round(2))

# %%
# Accuracy and time
# -----------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
colours = ["tab:blue"] * len(comparison.summary) + ["grey"] * len(comparison.baselines)
left.barh(table.index, table.accuracy, color=colours)
left.axvline(0.5, color="black", linestyle=":", label="chance level")
left.set(xlabel="test accuracy", xlim=(0, 1.05), title="200 test documents, one seed")
left.legend()
right.barh(table.index, table.seconds, color=colours)
right.set(xlabel="seconds", title="Training time")
left.invert_yaxis()
plt.show()

# %%
# Take away: fit a baseline to the same splits before you choose a mixer.
# The page :doc:`/comparing` has time budgets, seeds and all baselines.
