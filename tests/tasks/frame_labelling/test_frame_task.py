"""Frame labelling, through the verbs and transformers' Auto classes."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import soundfile
import torch
from sounds import RATE, TONES, tone
from transformers import AutoFeatureExtractor, AutoModelForAudioFrameClassification

import longspan
from longspan import TrainedRun, UserError, compare, predict, recipes, tasks, train
from longspan.tasks.frame_labelling import task as frame_task
from longspan.tasks.frame_labelling.scores import merged
from longspan.tasks.frame_labelling.smoothing import paths
from longspan.testing import check_task

SMALL = ["model.dim=16", "model.heads=2", "model.depth=1", "model.kernel=3", "data.bands=12", "data.max_length=64"]
AUGMENTED = ["data.speed=0.2", "data.warp=0.1", "data.shift=0.1", "data.noise=0.1", "data.mask_bands=0.1"]
QUICK = [*SMALL, "training.num_train_epochs=8", "training.learning_rate=0.01", "training.per_device_train_batch_size=4"]

Labelled = tuple[np.ndarray, list[dict[str, Any]]]


def recording(random: np.random.Generator, count: int = 5) -> Labelled:
    """A recording of tones with pauses, and its segments."""
    sounds, segments, seconds = [], [], 0.0
    for _ in range(count):
        pause, length = random.uniform(0.1, 0.3), random.uniform(0.15, 0.3)
        name = list(TONES)[random.integers(len(TONES))]
        sounds += [0.02 * random.standard_normal(int(pause * RATE)), tone(name, length, random)]
        start = seconds + len(sounds[-2]) / RATE
        seconds = start + len(sounds[-1]) / RATE
        segments.append({"start": round(start, 4), "end": round(seconds, 4), "label": name})
    return np.concatenate(sounds).astype(np.float32), segments


def write(folder: Path, made: Sequence[Labelled]) -> Path:
    """Write recordings and both kinds of tables."""
    lines, rows = [], ["recording,start,end,label"]
    for number, (sound, segments) in enumerate(made):
        soundfile.write(folder / f"{number}.wav", sound, RATE)
        lines.append(json.dumps({"recording": f"{number}.wav", "segments": segments}))
        rows += [f"{number}.wav,{one['start']},{one['end']},{one['label']}" for one in segments]
    (folder / "segments.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "segments.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    return write(tmp_path_factory.mktemp("tones"), [recording(random) for _ in range(16)])


@pytest.fixture(scope="module")
def run(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / "run"
    given = [f"data.path={tones / 'segments.jsonl'}", *QUICK, "model.dropout=0.0"]
    return train("frames", given, run=folder, progress=False)


@pytest.mark.slow
def test_it_keeps_the_promises(tones: Path) -> None:
    check_task("frame_labelling", tones / "segments.jsonl", [*SMALL, *AUGMENTED])


@pytest.mark.slow
def test_tones_are_found(run: TrainedRun) -> None:
    scores = run.scores["validation"]
    assert scores.accuracy > 0.9
    assert scores.segment_error <= 0.2
    assert run.details["labels"] == ["silence", *TONES]
    sound, segments = recording(np.random.default_rng(9))
    (found,) = run.predict([sound])
    assert [one["label"] for one in found.segments] == [one["label"] for one in segments]
    for one, right in zip(found.segments, segments, strict=True):
        assert (one["start"], one["end"]) == pytest.approx((right["start"], right["end"]), abs=0.12)
        assert 0.5 < one["confidence"] <= 1


def test_a_row_per_segment_is_the_same_as_lists(tones: Path) -> None:
    prepared = []
    for name in ("segments.csv", "segments.jsonl"):
        recipe = recipes.load("frames", [f"data.path={tones / name}", *SMALL])
        prepared.append(recipe.task.prepare(recipe))
    one, other = prepared
    assert one.data == other.data
    for split, rows in one.splits.items():
        assert rows["labels"][:] == other.splits[split]["labels"][:]


@pytest.mark.slow
def test_data_in_memory(run: TrainedRun, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    made = [recording(random) for _ in range(6)]
    data = {"recording": [sound for sound, _ in made], "segments": [segments for _, segments in made]}
    shape = ["model.dim=8", "model.heads=2", "model.depth=1", "data.bands=12", "training.num_train_epochs=1"]
    found = train("frames", [*shape, f"data.sample_rate={RATE}"], data=data, run=tmp_path / "run", progress=False)
    assert found.scores["validation"].segments == 5
    again = longspan.evaluate(run.folder, data=pandas.DataFrame(data))
    assert again.scores.accuracy > 0.85


@pytest.mark.slow
def test_long_recordings_are_read_in_windows(run: TrainedRun, tones: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever the pieces, predictions are those of the scores of evaluations; and memory does not grow."""
    random = np.random.default_rng(4)
    sound = np.concatenate([recording(random)[0] for _ in range(6)])
    soundfile.write(tmp_path / "long.flac", sound, RATE)
    (whole,) = predict(run.folder, tmp_path / "long.flac")
    monkeypatch.setattr(frame_task, "_TOGETHER", 1)
    (found,) = predict(run.folder, [{"recording": {"array": sound, "sampling_rate": RATE}}])
    assert [one["label"] for one in found.segments] == [one["label"] for one in whole.segments]
    table = tmp_path / "found.jsonl"
    table.write_text(json.dumps({"recording": "long.flac", "segments": whole.segments}), encoding="utf-8")
    # Rounding of times to milliseconds may move a frame at an edge.
    assert longspan.evaluate(run.folder, table).scores.accuracy > 0.995


@pytest.mark.slow
def test_raw_pcm_is_read_as_it_comes(run: TrainedRun) -> None:
    random = np.random.default_rng(5)
    sound, segments = recording(random, 12)
    stream = io.BytesIO((sound * 32767).astype("<i2").tobytes())
    found = predict(run.folder, "-", stdin=stream, pcm_rate=RATE)
    first = next(found)
    assert stream.tell() < len(stream.getvalue()) / 2
    labels = [one.segments[0]["label"] for one in (first, *found)]
    assert labels == [one["label"] for one in segments]
    (nothing,) = predict(run.folder, "-", stdin=io.BytesIO(b""), pcm_rate=RATE)
    assert "expected samples in 'standard input', got none" in (nothing.error or "")
    with pytest.raises(UserError, match="expected '-', standard input"):
        predict(run.folder, "x.wav", pcm_rate=RATE)


@pytest.mark.slow
def test_transformers_reads_it(run: TrainedRun) -> None:
    model = AutoModelForAudioFrameClassification.from_pretrained(run.folder)
    extractor = AutoFeatureExtractor.from_pretrained(run.folder)
    # Short enough for one window.
    sound, _ = recording(np.random.default_rng(6), 1)
    with torch.no_grad():
        logits = model(**extractor(sound, sampling_rate=RATE, return_tensors="pt")).logits[0]
    assert float(model.switch_penalty) == longspan.evaluate(run.folder, split="validation").details["switch_penalty"]
    (path,) = paths(logits.log_softmax(-1).numpy(), [float(model.switch_penalty)])
    (found,) = run.predict([sound])
    assert [model.config.label2id[one["label"]] for one in found.segments] == merged(path).tolist()


@pytest.mark.slow
def test_rttm(run: TrainedRun, tones: Path) -> None:
    (found,) = predict(run.folder, tones / "0.wav")
    lines = tasks.load("frame_labelling").formats()["rttm"](found).splitlines()
    assert len(lines) == len(found.segments)
    kind, file, channel, start, length, *_, label, _, _ = lines[0].split()
    assert (kind, file, channel, label) == ("SPEAKER", "0.wav", "1", found.segments[0]["label"])
    assert float(start) + float(length) == pytest.approx(found.segments[0]["end"], abs=2e-3)


BAD = {
    "end before start": (
        '{"start": 1, "end": 0.5, "label": "low"}',
        r"expected a list of segments .*one from 1 to 0\.5",
    ),
    "overlap": (
        '{"start": 0, "end": 0.5, "label": "low"}, {"start": 0.4, "end": 0.6, "label": "low"}',
        r"overlapping segments \(0 to 0\.5 s and 0\.4 to 0\.6 s\)",
    ),
    "beyond the end": ('{"start": 0, "end": 99, "label": "low"}', r"seconds long, got one that ends at 99; correct"),
    "no label": ('{"start": 0, "end": 0.1}', "a segment without a label"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_segments_are_named_or_counted(name: str, run: TrainedRun, tones: Path, tmp_path: Path) -> None:
    segments, message = BAD[name]
    good = (tones / "segments.jsonl").read_text(encoding="utf-8").splitlines()[1].replace("1.wav", f"{tones}/1.wav")
    bad = f'{{"recording": "{tones}/0.wav", "segments": [{segments}]}}'
    (tmp_path / "table.jsonl").write_text(f"{bad}\n{good}\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"table\.jsonl, line 1: .*{message}") as error:
        longspan.evaluate(run.folder, tmp_path / "table.jsonl")
    assert "\n" not in str(error.value)
    given = ["data.skip_bad_rows=true"]
    found = longspan.evaluate(run.folder, tmp_path / "table.jsonl", overrides=given)
    assert sum(found.skipped.values()) == 1


@pytest.mark.slow
def test_a_bad_segment_makes_its_recording_bad(run: TrainedRun, tones: Path, tmp_path: Path) -> None:
    rows = [f"{tones}/0.wav,0.1,0.2,low", f"{tones}/1.wav,0.1,0.2,low", f"{tones}/0.wav,0.15,0.3,high"]
    (tmp_path / "table.csv").write_text("\n".join(["recording,start,end,label", *rows]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape("row 1: overlapping segments (0.1 to 0.2 s and 0.15 to 0.3 s)")):
        longspan.evaluate(run.folder, tmp_path / "table.csv")


@pytest.mark.slow
def test_bad_and_unusual_recordings(run: TrainedRun, tmp_path: Path) -> None:
    sound, segments = recording(np.random.default_rng(7))
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    # Stereo, at another rate.
    soundfile.write(tmp_path / "stereo.wav", np.stack([np.repeat(sound, 2)] * 2, 1), 2 * RATE)
    names = ["text.wav", "empty.wav", "silent.wav", "stereo.wav", "lost.wav"]
    (tmp_path / "table.csv").write_text("\n".join(["recording", *names]) + "\n", encoding="utf-8")
    text, empty, silent, stereo, lost = predict(run.folder, tmp_path / "table.csv")
    assert "expected a recording such as WAV" in (text.error or "")
    assert "got none" in (empty.error or "")
    assert silent.error is None
    assert [one["label"] for one in stereo.segments] == [one["label"] for one in segments]
    assert "lost.wav" in (lost.error or "")
    assert all(one.segments is None for one in (text, empty, lost))


def test_there_must_be_labels(tones: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text(
        "".join(f'{{"recording": "{tones}/{number}.wav", "segments": []}}\n' for number in range(4)), encoding="utf-8"
    )
    with pytest.raises(UserError, match="expected segments with labels other than 'silence'"):
        train("frames", [f"data.path={tmp_path / 'none.jsonl'}", *QUICK], run=tmp_path / "run", progress=False)
    (tmp_path / "unlabelled.csv").write_text("recording,start,end\na.wav,0,1\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected a column 'label'"):
        train("frames", [f"data.path={tmp_path / 'unlabelled.csv'}", *QUICK], run=tmp_path / "run", progress=False)


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_it_is_compared_with_a_baseline(tones: Path, tmp_path: Path) -> None:
    given = [f"data.path={tones / 'segments.jsonl'}", *QUICK]
    found = compare("frames", ["additive"], 1, given, tmp_path / "all", baselines=["mfcc"])
    assert [row.mixer for row in found.summary] == ["additive"]
    assert found.baselines[0].scores["validation"].accuracy > 0.9


def test_samples_themselves(tones: Path, tmp_path: Path) -> None:
    overrides = ["data.features=samples", "data.hop_seconds=0.004", "data.speed=0.1", "data.shift=0.1"]
    found = train("frames", [f"data.path={tones / 'segments.csv'}", *QUICK, *overrides, "training.max_steps=2"],
                  run=tmp_path / "run", progress=False)  # fmt: skip
    assert 0 <= found.scores["validation"].accuracy <= 1
