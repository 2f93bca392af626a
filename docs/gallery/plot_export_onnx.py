"""
Export to ONNX and compare the outputs
======================================

``export`` writes a program that runs in onnxruntime, without longspan. We compare its outputs and speed with those of
the model.
"""

# %%
# Train a classifier
# ------------------
# Each of three classes prefers a third of the words. A small model is enough to show the export.

import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import torch
from transformers import AutoTokenizer

import longspan

numbers = np.random.default_rng(0)
words = np.array([f"word{number}" for number in range(90)])


def text(kind: int, length: int) -> str:
    """Return a text that prefers a third of the words."""
    weights = np.where(np.arange(90) % 3 == kind, 1.6, 1.0)
    return " ".join(numbers.choice(words, length, p=weights / weights.sum()))


kinds = [number % 3 for number in range(600)]
texts = [text(kind, int(numbers.integers(20, 80))) for kind in kinds]
folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "classify",
    data=(texts, [f"kind{kind}" for kind in kinds]),
    run=Path(folder.name, "run"),
    test_fraction=0.2,
    dim=32,
    wide=False,
    num_train_epochs=6,
    min_steps=0,
    max_minutes=0,
    progress=False,
)
print(f"test accuracy {run.scores['test'].accuracy:.2f} (chance level: 0.33)")

# %%
# Export
# ------
# ``export`` compares the program with the model, and returns the largest difference.

exported = run.export(Path(folder.name, "onnx"), format="onnx")
print(f"{exported.file}: {exported.bytes / 2**20:.1f} MiB, largest difference {exported.difference:.0e}")

# %%
# Run it without longspan
# -----------------------
# onnxruntime runs the program, and transformers reads the tokenizer.

session = onnxruntime.InferenceSession(str(Path(exported.folder, exported.file)), providers=["CPUExecutionProvider"])
tokenizer = AutoTokenizer.from_pretrained(exported.folder)


def by_onnx(documents: list[str]) -> np.ndarray:
    """Return the logits of the program."""
    rows = tokenizer(documents, padding=True, return_tensors="np")
    inputs = {name: rows[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    return session.run(None, inputs)[0]


@torch.no_grad()
def by_model(documents: list[str]) -> np.ndarray:
    """Return the logits of the model."""
    rows = tokenizer(documents, padding=True, return_tensors="pt")
    return run.model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits.numpy()


new = [text(number % 3, 60) for number in range(200)]
ours, theirs = by_model(new), by_onnx(new)
print(f"largest difference on new texts {np.abs(ours - theirs).max():.0e}")
print(f"the same class for {(ours.argmax(1) == theirs.argmax(1)).mean():.0%} of them")

# %%
# Outputs and speed
# -----------------
# Each time is the median of seven calls with one text.

lengths = [16, 64, 256, 1024, 4096]
seconds = {"longspan": [], "onnxruntime": []}
for length in lengths:
    one = [text(0, length)]
    for name, call in (("longspan", by_model), ("onnxruntime", by_onnx)):
        taken = []
        for _ in range(7):
            start = time.perf_counter()
            call(one)
            taken.append(time.perf_counter() - start)
        seconds[name].append(1e3 * np.median(taken))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.scatter(ours, theirs, s=6)
left.axline((0, 0), slope=1, color="grey", linewidth=0.8)
left.set(xlabel="logits of the model", ylabel="logits of the program", title="200 new texts")
for name, values in seconds.items():
    right.loglog(lengths, values, marker="o", label=name)
right.set_xticks(lengths, lengths)
right.minorticks_off()
right.set(xlabel="words in the text", ylabel="milliseconds, tokenizer included", title="One text at a time")
right.legend()
plt.show()

# %%
# Take away: the program computes the outputs of the model, and needs neither PyTorch nor longspan.
# The page :doc:`/export` has the formats, the mixers that can be exported, and int8.
