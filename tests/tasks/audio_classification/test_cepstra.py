"""Linear models over cepstral coefficients inside audio classifiers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dct
from sounds import write_tones

from longspan import evaluate, train
from longspan.models.wide.linear import SEGMENTS, RecordingPart

SMALL = ["model.dim=8", "model.heads=2", "model.depth=1", "data.bands=12", "training.num_train_epochs=2"]


def test_features_are_moments_of_cepstra() -> None:
    frames = torch.randn(1, 50, 12, generator=torch.Generator().manual_seed(0))
    found = RecordingPart(12, 3).features(None, None, input_features=frames)[0]
    cepstra = dct(frames[0].numpy(), axis=1, norm="ortho")
    parts = [*np.split(cepstra, SEGMENTS), cepstra]
    moments = [np.stack([moment(part, 0) for part in parts]) for moment in (np.mean, np.std)]
    expected = np.concatenate(moments, 1)
    # float32 sums of 50 squares, whose difference cancels.
    np.testing.assert_allclose(found.numpy(), expected.reshape(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_no_feature(left: bool) -> None:
    part, random = RecordingPart(4, 3), torch.Generator().manual_seed(0)
    frames, padding = torch.randn(1, 11, 4, generator=random), torch.randn(1, 6, 4, generator=random)
    alone = part.features(None, None, input_features=frames)
    mask = torch.zeros(1, 17, dtype=torch.bool)
    mask[:, slice(6, None) if left else slice(11)] = True
    padded = torch.cat((padding, frames) if left else (frames, padding), 1)
    torch.testing.assert_close(part.features(mask, None, input_features=padded), alone)


def test_silence_has_derivatives() -> None:
    counts = torch.ones(1, 10, requires_grad=True)
    RecordingPart(4, 3).features(None, counts, input_features=torch.zeros(1, 20, 4)).sum().backward()
    assert counts.grad is not None
    assert counts.grad.isfinite().all()


def test_positions_that_do_not_count_say_nothing() -> None:
    part = RecordingPart(4, 3)
    frames = torch.randn(1, 20, 4, generator=torch.Generator().manual_seed(0))
    counts = torch.ones(1, 10)
    counts[0, :2] = 0
    before = part.features(None, counts, input_features=frames)
    frames[:, :4] += 1
    torch.testing.assert_close(part.features(None, counts, input_features=frames), before)


def test_parts_are_reported_and_saved(tmp_path: Path) -> None:
    data = write_tones(tmp_path / "tones")
    run = train("audio", [f"data.path={data}", *SMALL], run=tmp_path / "run", progress=False)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["parts"]["values"]["counts"] == 1
    assert run.scores["validation"].accuracy == 1
    scored = evaluate(tmp_path / "run", split="validation")
    assert scored.details["parts"]["values"] == metrics["parts"]["values"]
    assert len(run.explain(data / "low" / "0.wav").scores)
