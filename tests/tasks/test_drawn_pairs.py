"""Training pairs with drawn tokens: the same for an epoch and a pair, others in another epoch, and within limits."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.drawn import EpochBatches
from longspan.data.config import DataConfig
from longspan.data.text.pairs import PairProcessor, pair_tokenizer
from longspan.tasks.base.seq2seq.trainer import DrawnPairs

SOURCES = [f"the old dog sees {number} horses near the old house" for number in range(20)]
TARGETS = [f"der alte Hund sieht {number} Pferde nahe dem alten Haus" for number in range(20)]


@pytest.fixture(scope="module")
def pairs() -> tuple[Dataset, PairProcessor]:
    texts: dict[str, Any] = {"source": SOURCES, "target": TARGETS}
    processor = PairProcessor(pair_tokenizer(DataConfig(vocab_size=330), [*SOURCES, *TARGETS], "drawn pairs"))
    streams = [one.streams for one in processor.encode(texts, DataConfig())]
    rows = {name: [each[name] for each in streams] for name in ("input_ids", "labels")}
    return Dataset.from_dict({**texts, **rows}), processor


def test_pairs_are_drawn_by_seed_epoch_and_number(pairs: tuple[Dataset, PairProcessor]) -> None:
    rows, processor = pairs
    drawn = DrawnPairs(rows, processor, 0.3, 7, (None, None))
    batches = EpochBatches(LengthBatches([3] * len(rows), 4, shuffle=True, seed=7))
    batches.set_epoch(2)
    epoch = [index for batch in batches for index in batch]
    assert sorted(epoch) == [(2, row) for row in range(len(rows))]
    again = DrawnPairs(rows, processor, 0.3, 7, (None, None))
    # In any order, as a resumed run does not begin with the first.
    assert [again[index] for index in sorted(epoch)] == [drawn[2, row] for row in range(len(rows))]
    assert [drawn[1, row] for row in range(3)] != [drawn[2, row] for row in range(3)]
    assert [DrawnPairs(rows, processor, 0.3, 8, (None, None))[2, row] for row in range(3)] != [
        drawn[2, row] for row in range(3)
    ]
    for row in range(len(rows)):
        pair, end = drawn[0, row], processor.tokenizer.eos_token_id
        assert pair["input_ids"].count(end) == pair["labels"].count(end) == 1
        assert (pair["input_ids"][-1], pair["labels"][-1]) == (end, end)
        assert processor.texts([pair["input_ids"], pair["labels"]]) == [SOURCES[row], TARGETS[row]]


def test_lengths_grow_and_keep_their_limit(pairs: tuple[Dataset, PairProcessor]) -> None:
    rows, processor = pairs
    drawn = DrawnPairs(rows, processor, 0.3, 0, (None, None))
    lengths = np.array([[len(drawn[0, row][name]) for name in ("input_ids", "labels")] for row in range(len(rows))])
    ordinary = np.array([[len(ids) for ids in rows[name]] for name in ("input_ids", "labels")]).sum(1)
    assert drawn.growth() == pytest.approx(lengths.sum(0) / ordinary)
    # In one batch, all are padded to the longest, here to multiples of two or four.
    share = drawn.padding_fraction([list(range(len(rows)))])
    assert 1 - lengths.sum() / (len(rows) * lengths.max(0).sum()) <= share < 0.5
    # Of a limit of the ordinary tokens, nothing but these is left.
    most = [max(map(len, rows[name])) for name in ("input_ids", "labels")]
    limited = DrawnPairs(rows, processor, 0.3, 0, most)
    for row in range(len(rows)):
        for name, number in zip(("input_ids", "labels"), most, strict=True):
            assert len(limited[0, row][name]) <= number
            assert limited[0, row][name] in (rows[row][name], drawn[0, row][name])
