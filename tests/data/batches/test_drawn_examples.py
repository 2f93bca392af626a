"""Examples that are drawn anew in each epoch: by seed, epoch and number alone, and in batches of these."""

from typing import Any

import numpy as np

from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.drawn import DrawnExamples, EpochBatches, Index
from longspan.data.batches.streams import Stream
from longspan.training.lengths import Collator


class Noise(DrawnExamples[dict[str, Any]]):
    """As many numbers as the example's number, with two others."""

    def __len__(self) -> int:
        return 3

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        tokens = random.integers(100, size=1 + index[1])
        return {"input_ids": tokens, "share": np.float32(0.5), "second": np.int64(index[0])}


def test_an_example_depends_on_seed_epoch_and_number_alone() -> None:
    examples, again = Noise(7), Noise(7)
    # In another order, as a resumed run does not begin with the first.
    found = {index: examples[index]["input_ids"].tolist() for index in ((0, 2), (1, 2), (1, 1))}
    for index in reversed(found):
        assert again[index]["input_ids"].tolist() == found[index]
    assert found[0, 2] != found[1, 2]
    assert Noise(8)[0, 2]["input_ids"].tolist() != found[0, 2]
    assert found[1, 1] == np.random.default_rng((7, 1, 1)).integers(100, size=2).tolist()


def test_batches_have_the_epoch() -> None:
    batches = EpochBatches(LengthBatches([3, 1, 2], 2, shuffle=False))
    assert len(batches) == 2
    assert list(batches) == [[(0, 0), (0, 2)], [(0, 1)]]
    batches.set_epoch(4)
    assert list(batches) == [[(4, 0), (4, 2)], [(4, 1)]]


def test_what_is_no_stream_is_stacked() -> None:
    examples = Noise(0)
    batch = Collator({"input_ids": Stream(mask="attention_mask")})([examples[5, 0], examples[5, 2]])
    assert set(batch) == {"input_ids", "attention_mask", "share", "second"}
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["share"].tolist() == [0.5, 0.5]
    assert batch["second"].tolist() == [5, 5]
