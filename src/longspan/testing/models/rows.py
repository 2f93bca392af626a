"""Padding and other rows of a batch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.testing.models.subject import LENGTHS, NotApplicable, Subject, deviation, padded, positions_of


def padding_on_the_right(subject: Subject) -> Iterator[tuple[str, float]]:
    """Padding on the right changes nothing at real positions, in a batch and in a single row."""
    yield from _padding(subject, "right")


def padding_on_the_left(subject: Subject) -> Iterator[tuple[str, float]]:
    """Padding on the left changes nothing at real positions, in a batch and in a single row."""
    yield from _padding(subject, "left")


def _padding(subject: Subject, side: str) -> Iterator[tuple[str, float]]:
    if not subject.accepts("attention_mask"):
        raise NotApplicable("forward takes no attention_mask")
    ids, pad = subject.draw(len(LENGTHS)), subject.config.pad_token_id or 0
    counted = subject.counts_positions and side == "left"
    whole = [
        subject.read_padded(ids[row : row + 1, :length], None, torch.arange(length).unsqueeze(0) if counted else None)
        for row, length in enumerate(LENGTHS)
    ]
    for more in (0, 6):
        rows, mask = padded(ids, LENGTHS, side, more, pad)
        positions = positions_of(mask) if counted else None
        found = subject.read_padded(rows, mask, positions)
        yield "in a batch", _largest(subject, found, mask, whole)
    for row in range(len(LENGTHS)):
        alone, real = rows[row : row + 1], mask[row : row + 1]
        found = subject.read_padded(alone, real, None if positions is None else positions[row : row + 1])
        yield "batch size 1", _largest(subject, found, real, whole[row : row + 1])


def _largest(subject: Subject, found: Tensor, mask: Tensor, whole: list[Tensor]) -> float:
    # The target of an encoder and a decoder has no padding.
    real = [row if subject.task == "seq2seq" else row[kept.bool()] for row, kept in zip(found, mask, strict=True)]
    return max(deviation(row, one[0]) for row, one in zip(real, whole, strict=True))


def limit_on_the_left(subject: Subject) -> str:
    """Return why nothing claims that padding on the left changes nothing; "" where something does."""
    names = (name for name, _ in subject.model.named_modules() if "position" in name.rpartition(".")[2])
    table = next((name for name in names if "relative" not in name and "rotary" not in name), "")
    if table and not subject.counts_positions:
        return f"positions are absolute ({table}), and forward takes no position_ids"
    return ""


def other_rows(subject: Subject) -> Iterator[tuple[str, float]]:
    """Other rows of a batch change nothing."""
    ids = subject.draw(3)
    expected = subject.read_padded(ids, None)
    for row in range(3):
        changed = subject.draw(3, seed=1)
        changed[row] = ids[row]
        yield "other tokens", deviation(subject.read_padded(changed, None)[row], expected[row])
        yield "alone", deviation(subject.read_padded(ids[row : row + 1], None)[0], expected[row])
    yield "another order", deviation(subject.read_padded(ids.flip(0), None).flip(0), expected)
    if subject.accepts("attention_mask"):
        full = torch.ones_like(ids)
        yield "a mask of ones", deviation(subject.read_padded(ids, full), expected)


def earlier_inputs(subject: Subject) -> Iterator[tuple[str, float]]:
    """What was read before changes nothing: a model keeps no state outside its cache."""
    ids, expected = subject.draw(2), subject.read_padded(subject.draw(2), None)
    subject.read_padded(subject.draw(2, 3, seed=1), None)
    yield "after shorter rows", deviation(subject.read_padded(ids, None), expected)
    if subject.task == "causal" and subject.accepts("use_cache"):
        subject.read(subject.draw(2, seed=1), use_cache=True)
        yield "after a cached pass", deviation(subject.read(ids), expected)
        subject.read(subject.draw(2, seed=1), use_cache=True)
        yield "with a new cache", deviation(subject.read(ids, use_cache=True), expected)
