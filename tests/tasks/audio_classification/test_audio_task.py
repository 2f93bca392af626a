"""Audio classification, through the verbs, transformers' Auto classes, and its pipeline."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from sounds import RATE, TONES, tone, write_tones
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification, pipeline

import longspan
from longspan import TrainedRun, UserError, cli, compare, predict, train
from longspan.data.signals import decoding
from longspan.tasks.audio_classification import task
from longspan.testing import check_task

SMALL = ["model.dim=16", "model.heads=2", "model.depth=1", "model.kernel=3", "model.convolutions=2", "data.bands=12"]
AUGMENTED = ["data.speed=0.2", "data.warp=0.1", "data.shift=0.02", "data.noise=0.1", "data.mask_times=0.1"]
QUICK = [*SMALL, "training.num_train_epochs=8", "training.learning_rate=0.01", "training.per_device_train_batch_size=4"]


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="module")
def run(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train("audio", [f"data.path={tones}", *QUICK, "model.dropout=0.0"], run=folder, progress=False)


@pytest.mark.slow
def test_it_keeps_the_promises(tones: Path) -> None:
    check_task("audio_classification", tones, [*SMALL, *AUGMENTED, "data.mask_bands=0.1"])


@pytest.mark.slow
def test_tones_are_told_apart(run: TrainedRun) -> None:
    assert run.scores["validation"].accuracy == 1
    sound = tone("low", 0.2, np.random.default_rng(1))
    given = [
        sound,
        {"recording": {"array": sound, "sampling_rate": RATE}},
        # Stereo, at another rate: the same tone.
        {"recording": {"array": np.stack([np.repeat(sound, 2)] * 2), "sampling_rate": 2 * RATE}},
    ]
    for found in (run.predict(given[:1]), run.predict(given[1:])):
        assert {one.label for one in found} == {"low"}


@pytest.mark.slow
def test_a_table_has_stretches_of_files(run: TrainedRun, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    soundfile.write(tmp_path / "all.flac", np.concatenate([tone(name, 0.3, random) for name in TONES]), RATE)
    rows = [f"all.flac,{0.3 * number:.2f},{0.3 * number + 0.3:.2f}" for number in range(3)]
    (tmp_path / "parts.csv").write_text("recording,start,end\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert [one.label for one in predict(run.folder, tmp_path / "parts.csv")] == list(TONES)
    every = list(predict(run.folder, tmp_path / "all.flac", every=0.3))
    assert [one.label for one in every] == list(TONES)
    assert [one.where for one in every][1:] == ["all.flac, 0.30 to 0.60 s", "all.flac, 0.60 to 0.90 s"]
    # Stretches of a row count from the beginning of its file.
    (tmp_path / "rest.csv").write_text("recording,start,end\nall.flac,0.3,0.9\nall.flac,0.6,9\n", encoding="utf-8")
    *every, bad = predict(run.folder, tmp_path / "rest.csv", every=0.3)
    assert [one.label for one in every] == list(TONES)[1:]
    assert [one.where for one in every] == ["rest.csv, row 1, 0.30 to 0.60 s", "rest.csv, row 1, 0.60 to 0.90 s"]
    assert "which is 0.90 seconds long, got 9; correct the times" in str(bad.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bands": 10**9}, "bands must be from 1 to 4096, got 1000000000"),
        ({"bands": 13}, "does not fit config.json in 'other': expected inputs for a model with channels=12, got 13"),
    ],
)
def test_the_settings_of_sound_in_a_run_are_bounded_and_fit_its_model(
    values: dict[str, int],
    message: str,
    run: TrainedRun,
    tones: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(run.folder, "other"), "processor.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    for verb in (["predict", "other", str(tones)], ["evaluate", "other"], ["explain", "other", str(tones)]):
        assert cli.main(verb) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1


@pytest.mark.slow
def test_raw_pcm_is_read_as_it_comes(run: TrainedRun) -> None:
    random = np.random.default_rng(3)
    sounds = [tone(name, 0.25, random) for name in TONES]
    content = b"".join((sound * 32767).astype("<i2").tobytes() for sound in sounds)
    # Of the last stretch, one second in five is there.
    stream = io.BytesIO(content + content[: RATE // 10])
    found = predict(run.folder, "-", stdin=stream, every=0.25, pcm_rate=RATE)
    assert next(found).label == "high"
    assert stream.tell() < len(content)
    assert [one.label for one in found][:2] == ["low", "middle"]


@pytest.mark.slow
def test_pcm_needs_standard_input_and_a_length(run: TrainedRun, tones: Path) -> None:
    with pytest.raises(UserError, match="pcm_rate needs the seconds"):
        predict(run.folder, "-", pcm_rate=RATE)
    with pytest.raises(UserError, match="expected '-', standard input"):
        predict(run.folder, tones, pcm_rate=RATE, every=1.0)


@pytest.mark.slow
def test_transformers_reads_it(run: TrainedRun) -> None:
    model = AutoModelForAudioClassification.from_pretrained(run.folder)
    extractor = AutoFeatureExtractor.from_pretrained(run.folder)
    random = np.random.default_rng(4)
    sounds = [tone(name, seconds, random) for name, seconds in zip(TONES, (0.1, 0.3, 0.2), strict=True)]
    with torch.no_grad():
        logits = model(**extractor(sounds, sampling_rate=RATE, return_tensors="pt")).logits
    ours = [one.probabilities for one in run.predict(sounds)]
    found = [dict(zip(TONES, row, strict=True)) for row in logits.softmax(-1).tolist()]
    for one, other in zip(found, ours, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    classify = pipeline("audio-classification", model=model, feature_extractor=extractor)
    assert [answers[0]["label"] for answers in classify(sounds)] == list(TONES)
    with pytest.raises(UserError, match="expected sound with 8000 samples per second, got 16000"):
        extractor(sounds, sampling_rate=2 * RATE)


def test_padding_changes_nothing() -> None:
    made = longspan.LongspanForAudioClassification
    config = made.configured(dim=16, heads=2, depth=1, channels=4, stride=3, kernel=5, num_labels=2)
    model, x = made(config).double().eval(), torch.randn(1, 11, 4, dtype=torch.float64)
    padded = torch.cat((torch.full((1, 5, 4), torch.nan, dtype=torch.float64), x), 1)
    mask = (~padded.isnan().any(-1)).long()
    found = model(input_features=padded, attention_mask=mask).logits
    torch.testing.assert_close(found, model(input_features=x).logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "features"),
    [
        ("attention", []),
        ("mean+max", ["model.stem=4"]),
        ("mean+max", ["data.features=samples", "data.hop_seconds=0.004"]),
    ],
)
def test_long_recordings_are_read_in_segments(
    pooling: str, features: list[str], tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A causal model with a state that does not grow gives the same as at once, up to rounding."""
    shape = ["model.causal=true", "model.stem_norm=layer", "model.mixers=additive", f"model.pooling={pooling}"]
    shape.append("model.stride=3")
    made = train("audio", [f"data.path={tones}", *QUICK, *shape, *features, "training.max_steps=2"],
                 run=tmp_path / "run", progress=False)  # fmt: skip
    random = np.random.default_rng(5)
    soundfile.write(tmp_path / "long.wav", np.concatenate([tone("low", 1.01, random), tone("high", 1.0, random)]), RATE)
    files = [tmp_path / "long.wav", tones / "low" / "0.wav"]
    whole = list(predict(made.folder, files))
    monkeypatch.setattr(task, "LONG", 0.5)
    monkeypatch.setattr(task, "SEGMENT", 7)
    monkeypatch.setattr(decoding, "BLOCK", 1000)
    for one, other in zip(predict(made.folder, files), whole, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


BAD = {
    "empty.wav": (lambda path: soundfile.write(path, np.zeros(0), RATE), "expected samples in .*, got none"),
    "text.wav": (lambda path: path.write_text("no sound"), "expected a recording such as WAV"),
    "infinite.wav": (
        lambda path: soundfile.write(path, np.array([0.0, np.inf], np.float32), RATE, subtype="FLOAT"),
        "expected finite samples",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_recordings_are_named(name: str, run: TrainedRun, tones: Path, tmp_path: Path) -> None:
    write, message = BAD[name]
    write(tmp_path / name)
    (tmp_path / "table.csv").write_text(f"recording\n{name}\n{tones}/low/0.wav\n", encoding="utf-8")
    bad, good = predict(run.folder, tmp_path / "table.csv")
    assert bad.label is None
    assert re.search(message, bad.error or "")
    assert good.label == "low"


@pytest.mark.slow
def test_silence_and_truncation(run: TrainedRun) -> None:
    (silent,) = run.predict([np.zeros(1000, np.float32)])
    assert silent.probabilities is not None
    assert all(map(np.isfinite, silent.probabilities.values()))
    (cut,) = predict(run.folder, [np.zeros(8000, np.float32)], overrides=["data.max_length=20"])
    assert (cut.tokens_read, cut.tokens_total) == (20, 97)


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_it_is_compared_with_baselines(tones: Path, tmp_path: Path) -> None:
    given = [f"data.path={tones}", *QUICK]
    found = compare("audio", ["additive"], 1, given, tmp_path / "all", baselines=["mfcc", "cnn"])
    assert [row.mixer for row in found.summary] == ["additive"]
    assert [row.baseline for row in found.baselines] == ["mfcc", "cnn"]
    # Tones differ in their mean spectrum.
    assert found.baselines[0].scores["validation"].accuracy == 1


@pytest.mark.slow
def test_samples_themselves(tones: Path, tmp_path: Path) -> None:
    overrides = ["data.features=samples", "data.hop_seconds=0.004", "data.speed=0.1"]
    found = train("audio", [f"data.path={tones}", *QUICK, *overrides], run=tmp_path / "run", progress=False)
    assert found.scores["validation"].accuracy >= 0.5
    with pytest.raises(UserError, match=r"data\.warp is for data\.features=mel"):
        train("audio", [f"data.path={tones}", "data.features=samples", "data.warp=0.1"], run=tmp_path / "other")


@pytest.mark.slow
def test_an_explanation_says_when(run: TrainedRun) -> None:
    """Noise, and then a tone: it is the tone that speaks for its class."""
    random = np.random.default_rng(1)
    noise = (0.02 * random.standard_normal(RATE // 5)).astype(np.float32)
    found = run.explain(np.concatenate([noise, tone("low", 0.2, random)]), of="low", check=True)
    assert found.places == "seconds"
    # Two frames of 10 ms to a position.
    assert found.spans[:2] == [[0.0, 0.02], [0.02, 0.04]]
    pieces, half = found.pieces(), len(found.spans) // 2
    assert pieces[1].text == "0.02 to 0.04 s"
    assert sum(one.score for one in pieces[half:]) > sum(one.score for one in pieces[:half])
    assert found.checks is not None
    assert found.checks["removal"]["comprehensiveness"] > found.checks["random"]["comprehensiveness"]
    assert "recording" in found.page()
    assert "stretch" in found._repr_html_()
