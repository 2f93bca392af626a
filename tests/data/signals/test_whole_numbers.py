"""Samples as whole numbers are scaled by their type, as in files; of an unknown type, they are refused."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from datasets import Dataset, Features, List, Value

from longspan import UserError
from longspan.data.columns.media import Recording
from longspan.data.columns.pictures import Picture
from longspan.data.columns.values import BadCell
from longspan.data.images.decoding import decoded
from longspan.data.images.options import ImageData
from longspan.data.signals.options import RecordingData
from longspan.data.sources.formats.schema import schema_of
from longspan.data.sources.formats.tables import read_table
from longspan.data.sources.in_memory import rows_of, settings_for
from longspan.data.sources.locating import find_hub
from longspan.models.hub.feature_extraction import LongspanFeatureExtractor

SOUND = np.sin(np.arange(800) / 5) * 0.7


@pytest.mark.parametrize(("kind", "subtype"), [("int16", "PCM_16"), ("int32", "PCM_32"), ("uint8", "PCM_U8")])
def test_arrays_have_the_samples_of_files(tmp_path: Path, kind: str, subtype: str) -> None:
    soundfile.write(tmp_path / "sound.wav", SOUND, 8000, subtype=subtype)
    wanted, _ = soundfile.read(tmp_path / "sound.wav", dtype="float32")
    sizes = {"int16": 2**15, "int32": 2**31, "uint8": 2**7}
    raw = np.round(wanted.astype(np.float64) * sizes[kind]) + (128 if kind == "uint8" else 0)
    array = raw.clip(np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
    column = Recording("recording", "path_column")
    for cell in ({"array": array, "sampling_rate": 8000}, {"array": array}):
        parsed = column.parse(cell, tmp_path)
        assert parsed is not None
        np.testing.assert_array_equal(np.float32(parsed["samples"]), wanted)
    extractor = LongspanFeatureExtractor(normalise="none")
    found, same = (extractor(each, return_tensors="np").input_features for each in (array, wanted))
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("array", [[0, 1200, -300], np.array([0, 1200, -300])])
def test_whole_numbers_of_no_known_type_are_refused(array: Any) -> None:
    with pytest.raises(BadCell, match="whole numbers of unknown type"):
        Recording("recording", "path_column").parse({"array": array}, Path())
    with pytest.raises(UserError, match="whole numbers of unknown type"):
        LongspanFeatureExtractor()(array)
    assert Recording("recording", "path_column").parse({"array": [0, 1, -1]}, Path()) is not None


def int16_tables(sound: np.ndarray) -> dict[str, Any]:
    """Tables with one recording of 16-bit numbers, in every form that keeps their type."""
    inside = {"array": sound, "sampling_rate": 8000}
    arrow = pd.ArrowDtype(pa.list_(pa.int16()))
    typed = Features({"recording": List(Value("int16"))})
    nested = Features({"recording": {"array": List(Value("int16")), "sampling_rate": Value("int64")}})
    return {
        "a list of arrays": [sound],
        "a list of objects": [{"recording": inside}],
        "a list of lists of numbers": [list(sound)],
        "an array of arrays": sound[None],
        "a dict of columns": {"recording": [sound]},
        "a DataFrame of arrays": pd.DataFrame({"recording": [sound]}),
        "a DataFrame of lists of numbers": pd.DataFrame({"recording": [list(sound)]}),
        "a DataFrame of objects": pd.DataFrame({"recording": [inside]}),
        "a DataFrame of arrow": pd.DataFrame({"recording": pd.Series([sound], dtype=arrow)}),
        "a tensor": [torch.from_numpy(sound)],
        "a table of arrow": pa.table({"recording": pa.array([sound.tolist()], pa.large_list(pa.int16()))}),
        "a table of fixed sizes": pa.table({"recording": pa.array([sound.tolist()], pa.list_(pa.int16(), len(sound)))}),
        "a Dataset": Dataset.from_dict({"recording": [sound.tolist()]}, features=typed),
        "a Dataset of objects": Dataset.from_dict({"recording": [inside]}, features=nested),
        "a Dataset of NumPy's format": Dataset.from_dict({"recording": [sound]}, features=typed).with_format("numpy"),
    }


SIXTEEN = (SOUND * 30_000).astype(np.int16)
TABLES = int16_tables(SIXTEEN)


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_samples_of_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    columns, settings = [Recording("recording", "recording_column")], RecordingData()
    wanted = (SIXTEEN / 2**15).astype(np.float32)
    # To predict from, and the copy of what is trained on.
    copy = settings_for(TABLES[name], columns, settings)["path"]
    for rows in (
        rows_of(TABLES[name], columns, settings),
        read_table(Path(copy), schema_of(columns, settings)),
    ):
        (row,) = rows
        assert not row.problem
        np.testing.assert_array_equal(np.float32(row.values["recording"]["samples"]), wanted)


def test_images_of_sixteen_bits_in_a_data_set() -> None:
    # Dark ones, whose numbers would be those of bright ones of 8 bits.
    array = np.arange(250, dtype=np.uint16).reshape(10, 25)
    data = Dataset.from_dict({"image": [array]}, features=Features({"image": List(List(Value("uint16")))}))
    (row,) = rows_of(data, [Picture("image", "image_column")], ImageData())
    assert (decoded(row.values["image"], "grey", 64) == 0).all()


def test_a_folder_of_the_hub_has_the_samples_of_files(tmp_path: Path) -> None:
    table = pa.table({"recording": pa.array([SIXTEEN.tolist()], pa.list_(pa.int16()))})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "train.parquet")
    schema = schema_of([Recording("recording", "recording_column")], RecordingData())
    (row,) = find_hub(str(tmp_path / "data"), schema)["train"].rows()
    np.testing.assert_array_equal(np.float32(row.values["recording"]["samples"]), (SIXTEEN / 2**15).astype(np.float32))
