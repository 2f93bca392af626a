"""Documents packed into rows: nothing lost but a remainder, the same for any number of processes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.tasks.masked_words.masking import Masking
from longspan.tasks.masked_words.rows import PackedBatches, PackedData, Packing, fixed_rows

MASKING = Masking(build_tokenizer(DataConfig(tokens="bytes", vocab_size=300), [], mask=True), "tokens", 0.3)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 9), st.integers(0, 3))
def test_rows_are_full_and_read_nearly_all_tokens_once(lengths, rows, length, epoch):
    if sum(lengths) < rows * length:
        with pytest.raises(UserError, match=r"expected at least .* tokens to train on, .* lower one of the two"):
            Packing(lengths, rows, length, 0)
        return
    packing = Packing(lengths, rows, length, 0)
    read = []
    for number in range(packing.steps * rows):
        parts = list(packing.parts((epoch, number)))
        assert sum(stop - start for _, start, stop in parts) == length
        assert all(0 <= start < stop <= lengths[document] for document, start, stop in parts)
        read += [(document, place) for document, start, stop in parts for place in range(start, stop)]
    assert len(set(read)) == len(read) == packing.steps * rows * length > sum(lengths) - rows * length
    # Each document's tokens in order, one document after another.
    order = [document for document, _ in read]
    assert len(set(order)) == 1 + sum(one != other for one, other in pairwise(order))


def test_every_epoch_has_another_order_and_reads_another_part_of_a_single_document():
    packing = Packing([10, 10, 10, 10], 2, 10, 0)
    orders = {tuple(part for number in range(4) for part in packing.parts((epoch, number))) for epoch in range(8)}
    assert len(orders) > 4
    alone = Packing([95], 1, 10, 0)
    starts = {next(alone.parts((epoch, 0)))[1] for epoch in range(30)}
    assert starts == set(range(6))


def test_two_processes_read_what_one_reads():
    lengths = [7, 1, 0, 40, 12, 9]
    tokens = [np.full(length, 5 + number, dtype=np.int32) for number, length in enumerate(lengths)]

    def batches(rows: int, world: int) -> list[list[dict[str, torch.Tensor]]]:
        data = PackedData(tokens, Packing(lengths, rows * world, 8, 3), MASKING)
        found = []
        for rank in range(world):
            sampler = PackedBatches(data.packing.steps, rows, rank, world)
            sampler.set_epoch(1)
            found.append([[data[index] for index in batch] for batch in sampler])
        return [[row for one in step for row in one] for step in zip(*found, strict=True)]

    one, two = batches(4, 1), batches(2, 2)
    assert len(one) == len(two) == sum(lengths) // 32
    for step, same in zip(one, two, strict=True):
        for row, its in zip(step, same, strict=True):
            assert all(torch.equal(row[name], its[name]) for name in row)
    assert one[0][0]["attention_mask"].all()


def test_masks_are_drawn_anew_in_each_epoch_and_never_for_scores():
    tokens = [np.full(64, 9, dtype=np.int32)]
    data = PackedData(tokens, Packing([64], 1, 64, 0), MASKING)
    first, again, later = (data[index]["labels"] for index in ((0, 0), (0, 0), (1, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    fixed = [fixed_rows(tokens, np.array([64]), 24, MASKING) for _ in range(2)]
    assert [len(row["labels"]) for row in fixed[0]] == [24, 24, 16]
    assert all(torch.equal(one["input_ids"], two["input_ids"]) for one, two in zip(*fixed, strict=True))


def test_documents_and_positions_are_numbered_within_a_row():
    tokens = [np.full(5, 9, dtype=np.int32), np.zeros(0, dtype=np.int32), np.full(6, 8, dtype=np.int32)]
    first, second = fixed_rows(tokens, np.array([5, 0, 6]), 7, MASKING)
    assert first["document_ids"].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert first["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert second["position_ids"].tolist() == [0, 1, 2, 3]
    shorter = fixed_rows(tokens, np.array([2, 0, 6]), 7, MASKING)
    assert [len(row["labels"]) for row in shorter] == [7, 1]
    assert fixed_rows([], np.zeros(0, dtype=np.int64), 7, MASKING) == []
