"""Rows of numbers, read without `datasets`."""

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets

from longspan.training.lengths import NumberRows

FEATURES = Features(
    {"ids": List(Value("int32")), "labels": Value("int64"), "flags": List(Value("float64")), "score": Value("float32")}
)


def rows(count: int, seed: int) -> Dataset:
    draw = np.random.default_rng(seed)
    columns = {
        "ids": [draw.integers(0, 9, draw.integers(0, 20)).tolist() for _ in range(count)],
        "labels": draw.integers(0, 3, count).tolist(),
        "flags": [draw.random(3).tolist() for _ in range(count)],
        "score": draw.random(count).tolist(),
    }
    return Dataset.from_dict(columns, features=FEATURES)


def test_rows_are_those_of_the_format_of_numpy() -> None:
    whole = concatenate_datasets([rows(7, 0), rows(1, 1), rows(30, 2)])
    for dataset in (whole, whole.select(range(3, 33)), whole.select([5, 3, 30, 8])):
        found, usual = NumberRows.of(dataset), dataset.with_format("numpy")
        assert isinstance(found, NumberRows)
        assert len(found) == len(dataset)
        wanted = [len(dataset) - 1, 0, *range(len(dataset))]
        for one, other in zip(found.__getitems__(wanted), usual.__getitems__(wanted), strict=True):
            for name in FEATURES:
                assert np.asarray(one[name]).dtype == np.asarray(other[name]).dtype
                assert np.array_equal(one[name], other[name])


def test_other_rows_are_left_to_datasets() -> None:
    texts = Dataset.from_dict({"text": ["one"]})
    assert NumberRows.of(texts) is texts
    assert isinstance(NumberRows.of([{"ids": [1]}]), list)
