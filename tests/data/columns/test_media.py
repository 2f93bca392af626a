"""Recordings in cells of every kind, and what is wrong with others."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from longspan.data.columns.media import Recording
from longspan.data.columns.pictures import Picture
from longspan.data.images.options import ImageData
from longspan.data.signals.decoding import rate_of, samples, seconds_of
from longspan.data.signals.options import RecordingData
from longspan.data.sources.formats.schema import Schema
from longspan.data.sources.paths import read_paths

COLUMN = Recording("recording", "recording_column")
SCHEMA = Schema((COLUMN,), {"recording": "recording"})
SOUND = np.sin(np.arange(4000) / 10).astype(np.float32) / 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", SOUND, 8000, subtype="FLOAT")
    return tmp_path


def value(cells: dict[str, Any], folder: Path) -> dict[str, Any]:
    row = SCHEMA.row(cells, "here", folder)
    assert not row.problem
    found: dict[str, Any] = row.values["recording"]
    return found


def test_each_kind_of_cell_is_the_same_sound(folder: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"recording": "a.wav"},
        {"recording": "a.wav", "start": "", "end": None},
        {"recording": {"path": str(folder / "a.wav")}},
        {"recording": {"array": SOUND, "sampling_rate": 8000}},
        {"recording": {"array": np.stack([SOUND, SOUND]), "sampling_rate": 8000}},
        {"recording": {"bytes": (folder / "a.wav").read_bytes(), "path": None}},
        {"recording": (folder / "a.wav").read_bytes()},
        {"recording": SOUND.tolist()},
    ]
    for each in cells:
        np.testing.assert_allclose(samples(value(each, folder), 8000), SOUND, atol=1e-7)
    rates = [rate_of(value(each, folder)) for each in cells]
    assert rates == [8000] * 7 + [0]


def test_paths_in_parquet_are_paths(folder: Path) -> None:
    images = Picture("image", "image_column")
    table = {"recording": ["a.wav", None], "image": ["a.wav", None]}
    pq.write_table(pa.table(table), folder / "paths.parquet")
    pq.write_table(pa.table(table | {"image": [b"pixels", None]}), folder / "bytes.parquet")
    sound, none = read_paths([folder / "paths.parquet"], [COLUMN], RecordingData())
    assert (sound.values["recording"]["path"], none.problem) == (str(folder / "a.wav"), "no recording")
    for name, expected in (("paths", {"path": str(folder / "a.wav"), "bytes": None}),
                           ("bytes", {"path": None, "bytes": b"pixels"})):  # fmt: skip
        image, none = read_paths([folder / f"{name}.parquet"], [images], ImageData())
        assert (image.values["image"], none.problem) == (expected, "no image")


def test_stretches_of_a_file(folder: Path) -> None:
    found = value({"recording": "a.wav", "start": "0.1", "end": 0.3}, folder)
    assert seconds_of(found) == pytest.approx(0.2)
    np.testing.assert_allclose(samples(found, 8000), SOUND[800:2400], atol=1e-7)
    whole = value({"recording": "a.wav"}, folder)
    assert COLUMN.content(found) != COLUMN.content(whole) == COLUMN.content(dict(whole))


def test_resampling_keeps_a_tone(folder: Path) -> None:
    """Half the rate has half the samples, each the old one at its time, up to the filter's error and its ends."""
    found = samples(value({"recording": "a.wav"}, folder), 4000)
    assert len(found) == 2000
    np.testing.assert_allclose(found[200:-200], SOUND[400:-400:2], atol=1e-3)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"recording": "b.wav"}, "no recording .*b.wav"),
        ({"recording": "a.wav", "start": 0.3, "end": 0.2}, "the end 0.2 at or before the start 0.3"),
        ({"recording": "a.wav", "start": -1}, "-1 seconds"),
        ({"recording": "a.wav", "start": "soon"}, "text of 4 characters"),
        ({"recording": {"array": []}}, "an array of shape"),
        ({"recording": {"array": [0.0], "sampling_rate": 0}}, "0 samples per second"),
        ({"recording": ""}, "no recording"),
    ],
)
def test_bad_cells_are_named(cells: dict[str, Any], told: str, folder: Path) -> None:
    assert re.search(told, SCHEMA.row(cells, "here", folder).problem)
