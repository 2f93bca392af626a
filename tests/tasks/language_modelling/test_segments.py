"""Every token is predicted once, each row goes on where it stopped, and a resumed epoch is the same epoch."""

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard, skip_first_batches
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from longspan.data.text.long_documents import token_arrays
from longspan.errors import UserError
from longspan.tasks.language_modelling.segments import (
    IGNORED,
    Segment,
    SegmentBatches,
    SegmentData,
    check_enough,
)

END, PAD = 2, 0
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def make_documents(lengths: list[int]) -> list[np.ndarray]:
    """Tokens that say where they stand: 1000 * document + place."""
    return [np.arange(1, n + 1, dtype=np.int32) + 1000 * (number + 1) for number, n in enumerate(lengths)]


def loader(lengths: list[int], rows: int, length: int, **settings: Any) -> DataLoader:
    batches = SegmentBatches(lengths, rows, length, **{"shuffle": False, **settings})
    return DataLoader(SegmentData(make_documents(lengths), length, end_id=END, pad_id=PAD), batch_sampler=batches)


def read(batches: list[dict[str, torch.Tensor]], row: int) -> tuple[list[list[int]], list[list[int]]]:
    """What a row is fed, and what it is asked for, in pieces that begin where it forgets."""
    inputs: list[list[int]] = []
    targets: list[list[int]] = []
    for batch in batches:
        if batch["reset"][row]:
            inputs.append([])
            targets.append([])
        real = batch["attention_mask"][row].bool()
        assert not real.int().diff().gt(0).any(), "padding stands on the right"
        assert batch["input_ids"][row][~real].eq(PAD).all()
        assert batch["shift_labels"][row][~real].eq(IGNORED).all()
        inputs[-1] += batch["input_ids"][row][real].tolist()
        targets[-1] += batch["shift_labels"][row][real].tolist()
    return inputs, targets


def test_one_document_by_hand() -> None:
    first, second = loader([6], rows=2, length=2)
    assert first["input_ids"].tolist() == [[END, 1001], [1004, 1005]]
    assert first["shift_labels"].tolist() == [[1001, 1002], [1005, 1006]]
    assert first["attention_mask"].tolist() == [[1, 1], [1, 1]]
    assert first["reset"].tolist() == [True, True]
    assert second["input_ids"].tolist() == [[1002, 1003], [1006, PAD]]
    assert second["shift_labels"].tolist() == [[1003, 1004], [END, IGNORED]]
    assert second["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert second["reset"].tolist() == [False, False]
    kinds = {name: tensor.dtype for name, tensor in first.items()}
    whole = torch.int64
    assert kinds == {"input_ids": whole, "attention_mask": whole, "shift_labels": whole, "reset": torch.bool}


@given(
    lengths=LENGTHS,
    rows=st.integers(1, 4),
    length=st.integers(1, 9),
    world=st.integers(1, 3),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_every_token_is_predicted_once_from_those_before_it(
    lengths: list[int], rows: int, length: int, world: int, shuffle: bool, epoch: int
) -> None:
    """Known failure elsewhere: memories that are never reset at a document's end."""
    if sum(lengths) + len(lengths) < rows * world * length:
        with pytest.raises(UserError):
            SegmentBatches(lengths, rows, length, shuffle=shuffle, world=world)
        return
    fed: list[list[int]] = []
    asked: list[list[int]] = []
    steps = set()
    for rank in range(world):
        ours = loader(lengths, rows, length, shuffle=shuffle, rank=rank, world=world)
        assert isinstance(ours.batch_sampler, SegmentBatches)
        ours.batch_sampler.set_epoch(epoch)
        batches = list(ours)
        steps |= {len(ours), len(batches)}
        for row in range(rows):
            assert bool(batches[0]["reset"][row])
            # Only the last step may find a row without text.
            assert all(batch["attention_mask"][row, 0] for batch in batches[:-1])
            pieces = read(batches, row)
            fed += pieces[0]
            asked += pieces[1]
    assert len(steps) == 1
    # A row may begin within a document: what it then reads goes on where the row before it stopped.
    whole: list[list[int]] = []
    for inputs, targets in zip(fed, asked, strict=True):
        assert inputs[1:] == targets[:-1]
        if inputs[:1] == [END]:
            whole.append([END])
        elif inputs:
            assert whole[-1][-1] == inputs[0]
        whole[-1] += targets
    expected = [[END, *document.tolist(), END] for document in make_documents(lengths)]
    order = [expected.index(document) if len(document) > 2 else -1 for document in whole]
    assert sorted(whole) == sorted(expected)
    if not shuffle:
        assert [number for number in order if number >= 0] == [i for i, n in enumerate(lengths) if n]


def test_the_order_of_documents_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[Segment]]:
        batches = SegmentBatches([9] * 50, 2, 4, shuffle=True, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_rows_of_two_processes_are_those_of_one() -> None:
    lengths = [40, 3, 25, 17]
    settings: dict[str, Any] = {"shuffle": True, "seed": 3}
    whole = list(SegmentBatches(lengths, 4, 3, **settings))
    parts = [list(SegmentBatches(lengths, 2, 3, rank=rank, world=2, **settings)) for rank in range(2)]
    assert whole == [first + second for first, second in zip(*parts, strict=True)]


class Watched(SegmentData):
    """Counts what is read."""

    reads = 0

    def __getitem__(self, segment: Segment) -> dict[str, torch.Tensor]:
        Watched.reads += 1
        return super().__getitem__(segment)


def prepared(data: SegmentData, batches: SegmentBatches) -> DataLoader:
    return Accelerator(cpu=True).prepare(DataLoader(data, batch_sampler=batches))


def shard(data: SegmentData, batches: SegmentBatches) -> DataLoader:
    return DataLoaderShard(data, batch_sampler=batches)


@pytest.mark.parametrize("wrap", [prepared, shard])
def test_a_resumed_epoch_goes_on_and_reads_nothing_before(
    wrap: Callable[[SegmentData, SegmentBatches], DataLoader],
) -> None:
    """What transformers' Trainer does with a data loader when it resumes."""
    lengths = [40, 3, 25, 17]
    batches = SegmentBatches(lengths, 2, 3, shuffle=True, seed=1)
    whole = wrap(Watched(make_documents(lengths), 3, end_id=END, pad_id=PAD), batches)
    epochs = []
    for epoch in range(3):
        whole.set_epoch(epoch)  # type: ignore[attr-defined]
        epochs.append(list(whole))
    assert not torch.equal(epochs[0][0]["input_ids"], epochs[1][0]["input_ids"])
    done = 5
    Watched.reads = 0
    rest = skip_first_batches(whole, done)
    rest.set_epoch(1)
    rest.batch_sampler.batch_sampler.set_epoch(1)
    found = list(rest)
    assert Watched.reads == 2 * len(found) == 2 * (len(batches) - done)
    for ours, theirs in zip(found, epochs[1][done:], strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_workers_and_copies_give_the_same_batches() -> None:
    lengths = [40, 3, 25, 17]
    batches = SegmentBatches(lengths, 2, 3, shuffle=True)
    data = SegmentData(make_documents(lengths), 3, end_id=END, pad_id=PAD)
    alone = list(DataLoader(data, batch_sampler=batches))
    for others in (
        DataLoader(data, batch_sampler=batches, num_workers=2),
        DataLoader(data, batch_sampler=copy.deepcopy(batches)),
    ):
        for ours, theirs in zip(others, alone, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_passing_over_steps_is_cheap() -> None:
    """A hundred million tokens, the last steps of an epoch: their numbers alone are worked out."""
    batches = SegmentBatches([100_000_000], 20, 512, shuffle=False)
    assert len(batches) == 9766
    last = next(islice(iter(batches), 9765, None))
    assert last[0] == Segment(0, 9765 * 512, 512, False)
    # 195,313 segments among 20 rows leave 13.
    assert [segment.length for segment in last] == [512] * 13 + [0] * 7


def test_tokens_stay_in_the_file_of_the_data_set() -> None:
    rows = [[1, 2, 3], [], [4, 5]] * 3
    dataset = Dataset.from_dict({"input_ids": [np.array(row, dtype=np.int32) for row in rows]})
    for some, expected in (
        (dataset, rows),
        (dataset.select(range(2, 7)), rows[2:7]),
        (dataset.select([8, 0, 0]), [rows[8], rows[0], rows[0]]),
        (dataset.select([]), []),
    ):
        arrays = token_arrays(some)
        assert [array.tolist() for array in arrays] == expected
        assert not any(array.flags.owndata for array in arrays)


def test_the_number_of_examples_is_that_of_segments() -> None:
    # 0, 1, 2 and 3 tokens and an end each, in pieces of 2.
    assert len(SegmentData(make_documents([0, 1, 2, 3]), 2, end_id=END, pad_id=PAD)) == 1 + 1 + 2 + 2


def test_too_little_text_for_one_batch() -> None:
    check_enough([30, 32], rows=8, segment_length=8)
    with pytest.raises(UserError) as error:
        SegmentBatches([900], 32, 512, shuffle=False)
    assert str(error.value) == (
        "expected at least 16,384 tokens to train on, 32 rows (training.per_device_train_batch_size) of 512 "
        "(training.segment_length), got 901; lower one of the two, or use more text."
    )
    with pytest.raises(UserError, match=r"at least 32,768 tokens .* in each of 2 processes of 512 .* got 16,385"):
        SegmentBatches([16_384], 32, 512, shuffle=False, world=2)
    with pytest.raises(UserError, match="segment_length must be at least 1, got 0"):
        SegmentBatches([16_384], 32, 0, shuffle=False)
    with pytest.raises(UserError, match="per_device_train_batch_size must be at least 1, got 0"):
        check_enough([16_384], 0, 4)
