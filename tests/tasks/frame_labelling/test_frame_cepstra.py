"""Linear models over cepstral coefficients of neighbouring frames inside models of frames."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dct
from test_frame_task import SMALL, recording, write

from longspan import LongspanForAudioFrameClassification, UserError, compare, evaluate, train
from longspan.models.wide.linear import OFFSETS, FramePart


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_features_are_cepstra_of_neighbours(stride: int) -> None:
    frames = torch.randn(1, 31, 12, generator=torch.Generator().manual_seed(0))
    found = FramePart(12, 3, stride).features(None, None, input_features=frames)[0]
    cepstra = dct(frames[0].numpy(), axis=1, norm="ortho")
    middles = np.arange(0, 31, stride) + stride // 2
    expected = cepstra[(middles[:, None] + np.array(OFFSETS)).clip(0, 30)]
    # float32 sums of 12 products.
    np.testing.assert_allclose(found.numpy(), expected.reshape(len(middles), -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_no_feature(left: bool) -> None:
    part, random = FramePart(4, 3, 2), torch.Generator().manual_seed(0)
    frames, padding = torch.randn(1, 11, 4, generator=random), torch.randn(1, 6, 4, generator=random)
    alone = part.features(None, None, input_features=frames)
    mask = torch.zeros(1, 17, dtype=torch.bool)
    mask[:, slice(6, None) if left else slice(11)] = True
    padded = torch.cat((padding, frames) if left else (frames, padding), 1)
    torch.testing.assert_close(part.features(mask, None, input_features=padded)[:, :6], alone)


def test_positions_that_do_not_count_say_nothing() -> None:
    part, counts = FramePart(4, 3, 2), torch.ones(1, 10)
    frames = torch.randn(1, 20, 4, generator=torch.Generator().manual_seed(0))
    counts[0, 2:4] = 0
    before = part.features(None, counts, input_features=frames)
    frames[:, 4:8] += 1
    torch.testing.assert_close(part.features(None, counts, input_features=frames), before)


def test_causal_models_have_none() -> None:
    with pytest.raises(UserError, match="reads later frames"):
        LongspanForAudioFrameClassification.configured(dim=8, heads=2, channels=4, num_labels=3, causal=True, wide=True)


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_parts_are_reported_and_saved(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = write(tmp_path, [recording(random) for _ in range(16)]) / "segments.jsonl"
    given = [f"data.path={data}", *SMALL, "training.num_train_epochs=1"]
    run = train("frames", given, run=tmp_path / "run", progress=False)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    values = metrics["parts"]["values"]
    assert values["both"] == pytest.approx(run.scores["validation"].accuracy)
    scored = evaluate(tmp_path / "run", split="validation")
    assert scored.details["parts"]["values"] == values
    alone = compare("frames", ["additive"], 1, given, tmp_path / "all", baselines=["cepstra"]).baselines[0]
    assert alone.scores["validation"].accuracy > 0.8
    (found,) = run.predict([recording(random)[0]])
    assert found.segments
    assert len(run.explain(tmp_path / "0.wav").scores)
