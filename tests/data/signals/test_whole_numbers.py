"""Samples as whole numbers are scaled by their type, as in files; of an unknown type, they are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from longspan import UserError
from longspan.data.columns.media import Recording
from longspan.data.columns.values import BadCell
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
