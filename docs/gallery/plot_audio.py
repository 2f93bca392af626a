"""
Name the sounds of a recording
==============================

``longspan train audio`` learns classes of recordings. ``predict(..., every=...)`` then names what is heard in each
stretch of a long one.
"""

# %%
# Sounds of three machines
# ------------------------
# A fan hums with harmonics, a pump beats four times a second, and a drill whistles upwards. Each recording has
# noise, and a pitch and loudness of its own.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan
from longspan.ops.mel import log_mel

RATE, MACHINES = 8000, ("drill", "fan", "pump")
random = np.random.default_rng(0)


def sound(machine: str, seconds: float) -> np.ndarray:
    """Return a recording of a machine, (n,) float32."""
    times = np.arange(int(seconds * RATE)) / RATE
    pitch = random.uniform(0.8, 1.25)
    if machine == "fan":
        heard = sum(np.sin(2 * np.pi * 120 * pitch * number * times) / number for number in range(1, 6))
    elif machine == "pump":
        beats = np.exp(-12 * np.mod(4 * pitch * times + random.random(), 1))
        heard = 2 * beats * np.sin(2 * np.pi * 200 * pitch * times)
    else:
        heard = np.sin(2 * np.pi * (900 * pitch * times + 600 * times**2 / seconds))
    loudness = random.uniform(0.05, 0.3)
    return (loudness * (heard + 0.3 * random.standard_normal(len(times)))).astype(np.float32)


labels = [MACHINES[number % 3] for number in range(150)]
data = {"recording": [sound(label, random.uniform(0.5, 1)) for label in labels], "label": labels}

# %%
# Training on arrays
# ------------------
# Keys of the recipe are keywords. Arrays without a rate have that of the model.

folder = Path(tempfile.mkdtemp(), "run")
run = longspan.train(
    "audio", data=data, run=folder, sample_rate=RATE, dim=32, depth=1, num_train_epochs=8, speed=0.0, warp=0.0
)
print(f"validation accuracy: {run.scores['validation'].accuracy:.2f}")

# %%
# A long recording
# ----------------
# Six stretches of two seconds follow each other. Each half second has a prediction.

order = ["pump", "drill", "fan", "drill", "pump", "fan"]
long = np.concatenate([sound(machine, 2) for machine in order])
found = list(run.predict([long], every=0.5))
truth = [machine for machine in order for _ in range(4)]
right = np.mean([one.label == machine for one, machine in zip(found, truth, strict=True)])
print(f"half seconds with the right machine: {right:.2f}")

figure, (top, bottom) = plt.subplots(2, 1, figsize=(8.5, 4.5), sharex=True, height_ratios=(2, 1), layout="constrained")
bands = log_mel(long, rate=RATE, frame=200, hop=80, bands=40)
top.imshow(bands.T, aspect="auto", origin="lower", extent=(0, len(long) / RATE, 0, 40), cmap="magma")
top.set(ylabel="mel band", title="log-mel features")
seconds = (np.arange(len(found)) + 0.5) * 0.5
for machine in MACHINES:
    bottom.plot(seconds, [one.probabilities[machine] for one in found], marker="o", markersize=3, label=machine)
bottom.set(xlabel="seconds", ylabel="probability", ylim=(-0.05, 1.05))
bottom.legend(ncols=3)
plt.show()

# %%
# Take away: a model of short recordings names the sounds of long ones, in constant memory. :doc:`/audio` has the
# data that are read, and augmentation for speech.
