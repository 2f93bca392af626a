"""Batches hold every row once, within their limits, in an order that seed and epoch decide, with little padding."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.batches.by_length import LengthBatches, padded_length, padding_fraction
from longspan.data.batches.streams import Stream, nothing, pad

LENGTHS = st.lists(st.integers(0, 60), max_size=200)

TOKENS = {"input_ids": Stream(mask="attention_mask")}


@given(lengths=LENGTHS, batch_size=st.integers(1, 9), max_tokens=st.integers(0, 100), shuffle=st.booleans())
def test_every_row_once_within_the_limits(lengths: list[int], batch_size: int, max_tokens: int, shuffle: bool) -> None:
    batches = LengthBatches(lengths, batch_size, max_tokens=max_tokens, shuffle=shuffle)
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        formed = list(batches)
        assert len(batches) == len(formed)
        assert sorted(row for batch in formed for row in batch) == list(range(len(lengths)))
        for batch in formed:
            longest = max(lengths[row] for row in batch)
            assert 1 <= len(batch) <= batch_size
            assert not max_tokens or len(batch) == 1 or len(batch) * longest <= max_tokens


@given(lengths=LENGTHS, batch_size=st.integers(1, 5), max_tokens=st.integers(0, 100), world=st.integers(1, 4))
def test_processes_share_every_row_and_make_as_many_steps(
    lengths: list[int], batch_size: int, max_tokens: int, world: int
) -> None:
    shares = [
        list(LengthBatches(lengths, batch_size, max_tokens=max_tokens, shuffle=True, rank=rank, world=world))
        for rank in range(world)
    ]
    assert len(set(map(len, shares))) == 1
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(len(lengths)))
    for step in zip(*shares, strict=True):
        sizes = [len(batch) for batch in step]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        for batch in step:
            longest = max((lengths[row] for row in batch), default=0)
            assert not max_tokens or len(batch) <= 1 or len(batch) * padded_length(longest) <= max_tokens


def test_processes_together_read_the_batches_of_one_with_as_many_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 101)
    one = LengthBatches(lengths, 8, shuffle=True, seed=3)
    two = [LengthBatches(lengths, 4, shuffle=True, seed=3, rank=rank, world=2) for rank in (0, 1)]
    for epoch in (0, 1):
        for batches in (one, *two):
            batches.set_epoch(epoch)
        together = [sorted(first + second) for first, second in zip(*two, strict=True)]
        assert together == [sorted(batch) for batch in one]


def test_processes_read_documents_of_similar_length_in_the_same_step() -> None:
    lengths = np.arange(1, 1001)
    shares = [LengthBatches(lengths, 4, shuffle=True, rank=rank, world=3) for rank in range(3)]
    for step in zip(*shares, strict=True):
        sizes = lengths[[row for batch in step for row in batch]]
        # Of 1,000 lengths in 40 buckets; the very last holds what is left.
        assert sizes.max() - sizes.min() <= 48


def test_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 1000)

    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = LengthBatches(lengths, 8, shuffle=True, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    again = LengthBatches(lengths, 8, shuffle=True)
    first = list(again)
    again.set_epoch(1)
    again.set_epoch(0)
    assert list(again) == first == list(again)


def test_shuffled_batches_are_of_all_lengths_at_any_time() -> None:
    lengths = np.arange(4000)
    means = np.array([lengths[batch].mean() for batch in LengthBatches(lengths, 8, shuffle=True)])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.15


@pytest.mark.parametrize("width", [1, 2])
def test_shuffled_batches_of_equal_lengths_are_of_all_classes_of_a_sorted_source(width: int) -> None:
    """Folders of images, and texts that are cut, have one class after the other and one length."""
    classes = np.repeat(np.arange(10), 400)
    lengths = np.full((len(classes), width), 64).squeeze()
    batches = LengthBatches(lengths, 40, shuffle=True)
    found = []
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        found.append(list(batches))
        # Of 40 random rows, 9.85 classes are expected; 7 of 10 has a probability below 1e-6.
        assert min(len(set(classes[batch])) for batch in found[-1]) > 6
    assert found[0] != found[1]


def test_without_shuffling_the_longest_come_first() -> None:
    assert list(LengthBatches([3, 9, 1, 9, 5], 2, shuffle=False)) == [[1, 3], [4, 0], [2]]


def test_drop_last_leaves_out_only_what_is_not_full() -> None:
    assert list(LengthBatches([3, 9, 1, 9, 5], 2, shuffle=False, drop_last=True)) == [[1, 3], [4, 0]]
    # Two rows of 9 are all that 20 tokens hold: that batch is full.
    batches = LengthBatches([9, 9, 9, 9], 3, max_tokens=20, shuffle=False, drop_last=True)
    assert list(batches) == [[0, 1], [2, 3]]
    assert all(len(batch) == 7 for batch in LengthBatches([1] * 1000, 7, shuffle=True, drop_last=True))


def test_a_document_beyond_max_tokens_goes_alone() -> None:
    assert list(LengthBatches([50, 4, 4], 8, max_tokens=10, shuffle=False)) == [[0], [1, 2]]


def test_little_padding_on_lengths_like_those_of_film_reviews() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 0.6, 20_000).astype(int), 1024)
    for count in (500, 2_000, 20_000):
        some = lengths[:count]
        assert padding_fraction(LengthBatches(some, 64 if count > 500 else 8, shuffle=True), some) < 0.1
    assert padding_fraction(np.random.default_rng(0).permutation(len(lengths)).reshape(-1, 50).tolist(), lengths) > 0.5


def test_padding_fraction() -> None:
    assert padding_fraction([[0, 1], [2]], [2, 4, 7]) == pytest.approx(2 / 15)
    assert padding_fraction([], []) == 0.0


def test_impossible_limits() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        LengthBatches([1, 2], 0, shuffle=True)
    with pytest.raises(ValueError, match=r"max_tokens must be at least 0 .* got -1"):
        LengthBatches([1, 2], 1, max_tokens=-1, shuffle=True)
    with pytest.raises(ValueError, match="rank must be from 0 to 1 with 2 processes, got 2"):
        LengthBatches([1], 1, shuffle=False, rank=2, world=2)


def test_pad() -> None:
    examples: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7], "labels": 1, "length": 3},
        {"input_ids": np.array([8], dtype=np.int32), "labels": 0, "length": 1},
        {"input_ids": [], "labels": 2, "length": 0},
    ]
    batch = pad(examples, {"input_ids": Stream(fill=9, mask="attention_mask")})
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert batch["labels"].tolist() == [1, 0, 2]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_streams_have_lengths_of_their_own() -> None:
    streams = {
        "frames": Stream("float32", width=2, fill=-1, mask="frame_mask"),
        "labels": Stream(fill=-100),
        "absent": Stream(),
    }
    examples: list[dict[str, Any]] = [
        {"frames": [[1, 2]], "labels": [3, 4, 5]},
        {"frames": np.array([[1.5, 0], [2, 2]]), "labels": []},
        {"frames": [], "labels": [6]},
    ]
    batch = pad(examples, streams)
    assert list(batch) == ["frames", "frame_mask", "labels"]
    assert batch["frames"].dtype == torch.float32
    assert batch["frames"].tolist() == [[[1, 2], [-1, -1]], [[1.5, 0], [2, 2]], [[-1, -1], [-1, -1]]]
    assert batch["frame_mask"].tolist() == [[1, 0], [1, 1], [0, 0]]
    assert batch["labels"].tolist() == [[3, 4, 5], [-100, -100, -100], [6, -100, -100]]
    spare = nothing(examples[0], streams)
    assert spare["frames"].tolist() == [[[-1, -1]]]
    assert spare["frame_mask"].tolist() == [[0]]
    assert spare["labels"].tolist() == [[-100]]


def test_pad_without_labels() -> None:
    assert set(pad([{"input_ids": [1]}], TOKENS)) == {"input_ids", "attention_mask"}


@given(lengths=LENGTHS, batch_size=st.integers(1, 9), max_tokens=st.integers(0, 100))
def test_every_epoch_has_as_many_batches(lengths: list[int], batch_size: int, max_tokens: int) -> None:
    """A run resumed in its third epoch finds its place by counting batches."""
    batches = LengthBatches(lengths, batch_size, max_tokens=max_tokens, shuffle=True)
    counts = set()
    for epoch in range(4):
        batches.set_epoch(epoch)
        counts |= {len(batches), len(list(batches))}
    assert len(counts) == 1


def test_padded_lengths_recur_and_add_at_most_an_eighth() -> None:
    lengths = [padded_length(n) for n in range(5000)]
    assert lengths[:17] == list(range(17))
    assert all(n <= padded <= n * 9 / 8 for n, padded in enumerate(lengths))
    assert len(set(lengths[256:512])) == 9
    assert (padded_length(80), padded_length(1000), padded_length(1024)) == (80, 1024, 1024)
    assert pad([{"input_ids": [1] * 300}], TOKENS)["attention_mask"].shape == (1, 320)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=200),
    st.integers(1, 32),
    st.integers(0, 2000),
)
def test_rows_with_two_lengths_share_the_limit(pairs: list[tuple[int, int]], size: int, most: int) -> None:
    lengths = np.array(pairs)
    made = LengthBatches(lengths, size, max_tokens=most, shuffle=True, seed=1)
    batches = list(made)
    assert sorted(row for batch in batches for row in batch) == list(range(len(pairs)))
    assert len(batches) == len(made)
    for batch in batches:
        padded = sum(padded_length(int(one)) for one in lengths[batch].max(0)) * len(batch)
        assert made.positions(batch) == padded
        assert len(batch) <= size
        assert len(batch) == 1 or not most or padded <= most
    made.set_epoch(1)
    assert sorted(map(len, made)) == sorted(map(len, batches))


def test_rows_with_two_lengths_have_little_padding() -> None:
    """Less than by the first length alone, whose batches mix all second lengths that go with it."""
    drawn = np.random.default_rng(0)
    first = drawn.integers(5, 40, 4000)
    lengths = np.stack([first, np.maximum(1, (first * drawn.lognormal(0, 0.25, 4000)).astype(int))], 1)
    both = padding_fraction(LengthBatches(lengths, 1000, max_tokens=4096, shuffle=True), lengths)
    alone = padding_fraction(LengthBatches(lengths[:, 0], 1000, max_tokens=2048, shuffle=True), lengths)
    assert both < 0.2 < 0.25 < alone
