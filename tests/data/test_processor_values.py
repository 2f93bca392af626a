"""Values in the file of a processor that somebody else wrote are bounded: they cost one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoFeatureExtractor
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from longspan.data.graphs.many import GraphsProcessor
from longspan.data.graphs.processor import GraphProcessor
from longspan.data.images.processor import ImageProcessor
from longspan.data.processor import Processor
from longspan.data.signals.processor import RecordingProcessor
from longspan.errors import UserError
from longspan.tasks.frame_labelling.processor import FrameProcessor

SOUND = (16_000, "mel", 40, 0.025, 0.01, "level")
PROCESSORS: dict[str, Processor] = {
    "images": ImageProcessor("rgb", 64, 4, "rows"),
    "audio": RecordingProcessor(*SOUND),
    "frames": FrameProcessor(*SOUND),
    "nodes": GraphProcessor(2, 0, "columns", [0.0, 1.0], [1.0, 2.0], 4, 0),
    "graphs": GraphsProcessor(["C", "O"], 4),
}
SOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"bands": 10**9}, "data.bands must be from 1 to 4096, got 1000000000"),
    ({"bands": 0}, "bands must be from 1 to"),
    ({"bands": 40.5}, "bands expected an integer, got 40.5"),
    ({"sample_rate": 10**9}, "sample_rate must be from 1 to 768000, got 1000000000"),
    ({"sample_rate": 0}, "sample_rate must be from 1 to 768000, got 0"),
    ({"sample_rate": -16000}, "sample_rate must be from 1 to 768000, got -16000"),
    ({"frame_seconds": 1e9}, "frame_seconds must be from 0.0001 to 60, got"),
    ({"frame_seconds": float("nan")}, "frame_seconds must be from 0.0001 to 60, got nan"),
    ({"hop_seconds": float("inf")}, "hop_seconds must be from 0.0001 to 60, got inf"),
    ({"frame_seconds": 60, "sample_rate": 768_000}, "expected at most 1 bands with frames of 46,080,000 samples"),
    ({"frame_seconds": 60, "hop_seconds": 0.0001}, "expected frames of at most 256 hops, got 960,000 samples"),
    ({"features": "mfcc"}, "there is no features 'mfcc'; known names are mel, samples."),
    ({"normalise": ""}, "there is no normalise ''; known names are bands, level, none."),
]
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "images": [
        ({"patch_size": 10**9}, "patch_size must be from 1 to 1024, got 1000000000"),
        ({"patch_size": 0}, "patch_size must be from 1 to 1024, got 0"),
        ({"patch_size": True}, "patch_size expected an integer, got True"),
        ({"max_side": 10**9}, "max_side must be from 1 to 16384, got 1000000000"),
        ({"max_side": -1}, "max_side must be from 1 to 16384, got -1"),
        ({"colour": "cmyk"}, "there is no colour 'cmyk'; known names are grey, rgb."),
        ({"scan": "spiral"}, "there is no scan 'spiral'; known names are both, hilbert, rows."),
        ({"scan": ["rows"]}, "scan expected a string, got ['rows']"),
    ],
    "audio": SOUNDS,
    "frames": SOUNDS,
    "nodes": [
        ({"walk_positions": 10**9}, "walk_positions must be from 0 to 256, got 1000000000"),
        ({"walk_positions": -1}, "walk_positions must be from 0 to 256, got -1"),
        ({"eigenvector_positions": 10**9}, "eigenvector_positions must be from 0 to 1024, got 1000000000"),
        ({"normalize": "l2"}, "there is no normalize 'l2'; known names are columns, none, rows."),
        ({"scale": [0.0, 1.0]}, "scale must be above 0 and finite, got [0.0, 1.0]"),
        ({"scale": [1.0, float("inf")]}, "scale must be above 0 and finite, got [1.0, inf]"),
        ({"mean": [float("nan"), 1.0]}, "mean must be finite, got [nan, 1.0]"),
        ({"mean": [1.0]}, "mean and scale must have 2 numbers, got 1 and 2"),
        ({"normalize": "rows"}, "mean and scale must have 0 numbers, got 2 and 2"),
        ({"width": -1}, "width must be from 0 to 2147483647, got -1"),
    ],
    "graphs": [
        ({"walk_positions": 10**9}, "walk_positions must be from 0 to 256, got 1000000000"),
        ({"types": "CO"}, "types expected a list"),
    ],
}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [(name, values, message.removeprefix("data.")) for name, each in WRONG.items() for values, message in each],
)
def test_each_value_has_a_range(name: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved = PROCESSORS[name]
    saved.save_pretrained(tmp_path)
    assert type(saved).from_pretrained(tmp_path) == saved
    path = tmp_path / saved.files[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(UserError) as caught:
        type(saved).from_pretrained(tmp_path)
    told = str(caught.value)
    assert told.startswith(f"{str(path)!r} does not describe inputs of a model: ")
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize("change", [{"bands": None}, {"more": 1}])
def test_other_keys_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    PROCESSORS["audio"].save_pretrained(tmp_path)
    path = tmp_path / "processor.json"
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    with pytest.raises(UserError, match="expected what a RecordingProcessor saved"):
        RecordingProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images", {"patch_size": 10**9}, "patch_size must be from 1 to 1024, got 1000000000"),
        ("images", {"max_side": 0}, "max_side must be from 1 to 16384, got 0"),
        ("images", {"scan": "spiral"}, "there is no scan 'spiral'"),
        ("audio", {"feature_size": 10**9}, "expected at most 131,072 bands with frames of 400 samples"),
        ("audio", {"sampling_rate": 10**9}, "sampling_rate must be from 1 to 768000"),
        ("audio", {"features": "mfcc"}, "there is no features 'mfcc'"),
        ("audio", {"frame_seconds": 60, "hop_seconds": 0.0001}, "expected frames of at most 256 hops"),
    ],
)
def test_transformers_loads_none_of_them(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    PROCESSORS[name].save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    kind = {"images": AutoImageProcessor, "audio": AutoFeatureExtractor}[name]
    with pytest.raises(UserError, match=message):
        kind.from_pretrained(tmp_path)
