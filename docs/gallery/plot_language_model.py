"""
A language model of a long text
===============================

A language model with a linear mixer reads a text as a stream: its state goes on from segment to segment. Here it learns
the manual of Python character by character.
"""

# %%
# A long text
# -----------
# Python brings its manual along, as texts for ``help``. We take some 160,000 characters of it.

import pydoc_data.topics
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
text = text.encode("ascii", "replace").decode()[:160_000]
print(text[1000:1300])

# %%
# Train
# -----
# The last tenth of the text validates. ``forget="input"`` lets the model forget at rates that depend on what it reads.

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "shakespeare",
    data=[text],
    run=Path(folder.name, "run"),
    depth=2,
    dim=96,
    heads=4,
    dropout=0.0,
    num_train_epochs=5,
    learning_rate=5e-3,
    per_device_train_batch_size=4,
    warmup_steps=20,
    progress=False,
)
ours = run.scores["validation"].bits_per_character
print(f"{run.parameters:,} parameters, {ours:.2f} bits per character")

# %%
# N-grams, the baseline
# ---------------------
# Smoothed counts of n-grams are fitted in seconds, and are hard to beat on a small text.

comparison = longspan.compare("shakespeare", data=[text], run=Path(folder.name, "baseline"), baselines=["ngram"])
ngram = comparison.baselines[0].scores["validation"].bits_per_character
print(f"n-grams: {ngram:.2f} bits per character")

# %%
# Generate
# --------
# The state of the model is of constant size, so each further character costs the same.

print("".join(run.generate("The statement", max_new_tokens=200, seed=0)))

# %%
# Does context help?
# ------------------
# Scores in sliding windows give each character little text before it; carried states give it everything before.

windows = [2, 4, 8, 16, 32, 64, 128]
bits = [
    run.evaluate(split="validation", context="sliding", window=window).scores.bits_per_character for window in windows
]
steps = [each["step"] for each in run.history if "train_loss" in each]
losses = [each["train_loss"] / np.log(2) for each in run.history if "train_loss" in each]

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
left.plot(steps, losses, label="training")
left.axhline(ours, color="tab:blue", linestyle="--", label="validation, at the end")
left.axhline(ngram, color="tab:orange", linestyle=":", label="validation, n-grams")
left.set(xlabel="step", ylabel="bits per character", title="Learning curve")
left.legend()
right.plot(windows, bits, marker="o", label="sliding windows")
right.axhline(ours, color="tab:blue", linestyle="--", label="carried state")
right.axhline(ngram, color="tab:orange", linestyle=":", label="n-grams")
right.set_xscale("log", base=2)
right.set_xticks(windows, windows)
right.set(xlabel="characters in a window", ylabel="bits per character", title="Context of the validation text")
right.legend()
plt.show()

# %%
# Take away: carried states use all of the text before, at no further cost. Here little is gained beyond 32 characters.
# A small text and some seconds favour n-grams; a larger text and more training favour the model. The guide
# :doc:`/guides/language-models` and the page :doc:`/pretraining` go on from here.

folder.cleanup()
