"""
A language model of a long text
===============================

A language model with a linear mixer reads a text as a stream: its state carries over from segment to segment. Here it
is trained on the manual of Python, character by character.
"""

# %%
# A long text
# -----------
# Python contains its manual as texts for ``help``. We use 160,000 characters of it.

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
# The last tenth of the text is the validation split. The recipe ``shakespeare`` has ``additive`` attention with decay
# rates that depend on the input (``forget="input"``).

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
# N-gram baseline
# ---------------
# Smoothed n-gram counts are fitted in seconds, and are a strong baseline on a small text.

comparison = longspan.compare("shakespeare", data=[text], run=Path(folder.name, "baseline"), baselines=["ngram"])
ngram = comparison.baselines[0].scores["validation"].bits_per_character
print(f"n-grams: {ngram:.2f} bits per character")

# %%
# Generate
# --------
# The state has a constant size, so each further character costs the same.

print("".join(run.generate("The statement", max_new_tokens=200, seed=0)))

# %%
# Does context help?
# ------------------
# With sliding windows, each character has a limited context. With carried states, its context is all the text before.

windows = [2, 4, 8, 16, 32, 64, 128]
bits = [
    run.evaluate(split="validation", context="sliding", window=window).scores.bits_per_character for window in windows
]
steps = [each["step"] for each in run.history if "train_loss" in each]
losses = [each["train_loss"] / np.log(2) for each in run.history if "train_loss" in each]

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
left.plot(steps, losses, label="training")
left.axhline(ours, color="tab:blue", linestyle="--", label="validation, last epoch")
left.axhline(ngram, color="tab:orange", linestyle=":", label="validation, n-grams")
left.set(xlabel="step", ylabel="bits per character", title="Learning curve")
left.legend()
right.plot(windows, bits, marker="o", label="sliding windows")
right.axhline(ours, color="tab:blue", linestyle="--", label="carried state")
right.axhline(ngram, color="tab:orange", linestyle=":", label="n-grams")
right.set_xscale("log", base=2)
right.set_xticks(windows, windows)
right.set(xlabel="characters in a window", ylabel="bits per character", title="Validation loss by context")
right.legend()
plt.show()

# %%
# Take away: carried states use all the text before, at no further cost. Here, more than 32 characters add little.
# On a small text, n-grams have a lower loss than a model trained for half a minute. :doc:`/reference/results` has
# scores on larger texts. The guide :doc:`/guides/language-models` has the mixers.

folder.cleanup()
