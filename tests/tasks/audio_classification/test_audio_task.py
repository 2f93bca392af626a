"""Audio classification, through the verbs, transformers' Auto classes, and its pipeline."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sounds import RATE, TONES, tone, write_tones

from longspan.testing import check_task

SMALL = ["model.dim=16", "model.heads=2", "model.depth=1", "model.kernel=3", "model.convolutions=2", "data.bands=12"]
AUGMENTED = ["data.speed=0.2", "data.warp=0.1", "data.shift=0.02", "data.noise=0.1", "data.mask_times=0.1"]


def test_it_keeps_the_promises(tmp_path: Path) -> None:
    check_task("audio_classification", write_tones(tmp_path), [*SMALL, *AUGMENTED, "data.mask_bands=0.1"])
