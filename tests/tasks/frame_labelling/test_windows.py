"""Windows of recordings, their labels, and those that are drawn in training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from sounds import RATE, tone

from longspan import recipes
from longspan.data.signals.frame_blocks import windows
from longspan.data.signals.processor import FRAMES
from longspan.tasks.frame_labelling.processor import FrameProcessor, classes_at
from longspan.tasks.frame_labelling.windows import DrawnWindows, cut_for


@pytest.mark.parametrize("length", [1, 15, 16, 17, 40, 41, 100])
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_each_frame_is_the_own_one_of_one_window(length: int, block: int) -> None:
    frames = np.arange(2 * length, dtype=np.float32).reshape(-1, 2)
    found = list(windows((frames[start : start + block] for start in range(0, length, block)), 16, 2))
    np.testing.assert_array_equal(np.concatenate([one.frames[one.first : one.last] for one in found]), frames)
    assert all(len(one.frames) == 16 for one in found[:-1])
    assert len(found[-1].frames) > (4 if len(found) > 1 else 0)
    (whole,) = windows([frames], 0, 0)
    np.testing.assert_array_equal(whole.frames, frames)


def test_windows_are_of_whole_positions() -> None:
    assert (cut_for(2000, 2).size, cut_for(2000, 2).context) == (2000, 250)
    assert (cut_for(100, 3).size, cut_for(100, 3).context) == (99, 12)
    assert (cut_for(0, 2).size, cut_for(1, 2).size, cut_for(1, 2).context) == (0, 2, 0)


def test_classes_at_times() -> None:
    segments: dict[str, list[Any]] = {"start": [0.5, 1.0], "end": [0.8, 2.0], "label": ["a", "b"]}
    numbers = {"silence": 0, "a": 1, "b": 2}
    times = np.array([0.0, 0.5, 0.79, 0.8, 1.0, 1.99, 2.0])
    assert classes_at(times, segments, numbers).tolist() == [0, 1, 1, 0, 2, 2, 0]
    assert classes_at(times, {"start": [], "end": [], "label": []}, numbers).tolist() == [0] * 7


@pytest.mark.slow
@pytest.mark.parametrize("source", ["file", "array"])
@pytest.mark.parametrize("features", ["mel", "samples"])
def test_labels_move_with_what_is_heard(source: str, features: str, tmp_path: Path) -> None:
    """Whatever is drawn, frames of a tone in silence are loud where their label is that of the tone."""
    random = np.random.default_rng(0)
    sound = 1e-4 * random.standard_normal(3 * RATE).astype(np.float32)
    tones = (0.4, 1.1, 1.9, 2.6)
    segments = [{"start": begin, "end": begin + 0.3, "label": "low"} for begin in tones]
    for begin in tones:
        first = round(begin * RATE)
        sound[first : first + round(0.3 * RATE)] += tone("low", 0.3, random)
    soundfile.write(tmp_path / "a.wav", sound, RATE)
    given = "a.wav" if source == "file" else {"array": sound.tolist(), "sampling_rate": RATE}
    lines = [json.dumps({"recording": given, "segments": segments})]
    soundfile.write(tmp_path / "b.wav", sound[::-1], RATE)
    lines.append(json.dumps({"recording": "b.wav", "segments": []}))
    (tmp_path / "table.jsonl").write_text("\n".join(lines), encoding="utf-8")
    table = f"data.train={tmp_path / 'table.jsonl'}"
    keys = [table, table.replace("train", "validation"), "data.max_length=100", "data.speed=0.5", "data.shift=0.3"]
    keys += ["data.mask_bands=0.0", "data.normalise=level", "data.frame_seconds=0.016", f"data.features={features}"]
    recipe = recipes.load("frames", keys)
    prepared = recipe.task.prepare(recipe)
    processor, rows = prepared.processor, prepared.splits["train"]
    assert isinstance(processor, FrameProcessor)
    own = [number for number, document in enumerate(rows["document"][:]) if document == 0]
    drawn = DrawnWindows(rows, processor, recipe.data, {"silence": 0, "low": 1}, seed=0)
    starts: set[tuple[int, ...]] = set()
    for index in [(epoch, number) for epoch in range(4) for number in own]:
        example = drawn[index]
        frames, labels = example[FRAMES], example["labels"]
        loud = np.abs(frames).max(1) > 1 if features == "samples" else frames.max(1) > 0.5 * frames.max()
        # Those at the edges may differ.
        assert np.mean(loud != (labels == 1)) < 0.12, index
        assert 1 <= len(frames) <= 100
        starts.add(tuple(labels.tolist()))
        np.testing.assert_array_equal(drawn[index][FRAMES], frames)
    assert len(starts) > len(own)
