"""Small recordings of tones, a folder per class, for tests."""

from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
#: Frequencies of the classes, in Hz.
TONES = {"high": 2000.0, "low": 300.0, "middle": 800.0}


def tone(name: str, seconds: float, random: np.random.Generator, rate: int = RATE) -> np.ndarray:
    """Return a noisy tone of a class, (n,) float32."""
    times = np.arange(int(seconds * rate)) / rate
    pitch = TONES[name] * random.uniform(0.9, 1.1)
    noise = random.standard_normal(len(times))
    return (0.3 * np.sin(2 * np.pi * pitch * times) + 0.02 * noise).astype(np.float32)


def write_tones(folder: Path, each: int = 12, seed: int = 0) -> Path:
    """Write `each` recordings of each class, from 0.1 to 0.3 seconds long, and return the folder."""
    random = np.random.default_rng(seed)
    for name in TONES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            soundfile.write(folder / name / f"{number}.wav", tone(name, random.uniform(0.1, 0.3), random), RATE)
    return folder
