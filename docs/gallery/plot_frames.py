"""
Find the sounds of a long recording
===================================

``longspan train frames`` learns a label for each frame of recordings whose segments are labelled. Predictions are
segments, with start and end.
"""

# %%
# Recordings of three birds
# -------------------------
# A whistle, a trill and a chirp, with pauses and noise. Each recording has a list of its segments.

import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import longspan
from longspan.ops.mel import log_mel

RATE, BIRDS = 8000, ("chirp", "trill", "whistle")
random = np.random.default_rng(0)


def call(bird: str, seconds: float) -> np.ndarray:
    """Return the call of a bird, (n,) float32."""
    times, pitch = np.arange(int(seconds * RATE)) / RATE, random.uniform(0.85, 1.15)
    if bird == "chirp":
        heard = np.sin(2 * np.pi * pitch * (1200 * times + 1500 * times**2 / seconds))
    elif bird == "trill":
        heard = np.sin(2 * np.pi * 2200 * pitch * times) * (np.sin(2 * np.pi * 25 * times) > 0)
    else:
        heard = np.sin(2 * np.pi * 2200 * pitch * times)
    return (0.2 * heard).astype(np.float32)


def recording(seconds: float) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return a recording, (n,), and its segments."""
    sound, segments, start = np.zeros(int(seconds * RATE), np.float32), [], random.uniform(0.1, 0.5)
    while start + 0.6 < seconds:
        bird, length = BIRDS[random.integers(3)], random.uniform(0.3, 0.6)
        heard, first = call(bird, length), int(start * RATE)
        sound[first : first + len(heard)] = heard
        segments.append({"start": start, "end": start + length, "label": bird})
        start += length + random.uniform(0.1, 0.6)
    return sound + 0.02 * random.standard_normal(len(sound), np.float32), segments


made = [recording(10) for _ in range(30)]
data = {"recording": [sound for sound, _ in made], "segments": [segments for _, segments in made]}

# %%
# Training
# --------
# Windows of five seconds are read at once. Arrays without a rate have that of the model.

folder = Path(tempfile.mkdtemp(), "run")
keys = {"sample_rate": RATE, "max_length": 500, "dim": 32, "depth": 1, "num_train_epochs": 8, "shift": 0.0}
run = longspan.train("frames", data=data, run=folder, normalise="level", **keys)
scores = run.scores["validation"]
print(f"frame accuracy: {scores.accuracy:.3f}, segment error rate: {scores.segment_error:.3f}")

# %%
# Segments of a new recording
# ---------------------------

sound, right = recording(12)
(found,) = run.predict([sound])
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
frames = log_mel(sound, rate=RATE, frame=200, hop=80, bands=40)
axes.imshow(frames.T, origin="lower", aspect="auto", cmap="Greys", extent=(0, 12, 0, 40))
for height, (name, segments) in enumerate({"found": found.segments, "right": right}.items()):
    for one in segments:
        place, width = 42 + 5 * height, one["end"] - one["start"]
        axes.barh(place, width, 4, one["start"], color=f"C{BIRDS.index(one['label'])}")
    axes.text(12.1, 42 + 5 * height, name, va="center", fontsize=9)
for number, bird in enumerate(BIRDS):
    axes.barh(0, 0, color=f"C{number}", label=bird)
axes.set(xlabel="seconds", ylabel="mel band", ylim=(0, 50), xlim=(0, 12))
axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2), frameon=False)

# Take away: segments come with start, end and confidence; :doc:`/frames` has the formats of tables.
