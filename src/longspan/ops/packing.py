"""Rows of documents: padding set to zero or moved to one side, and several documents packed in one row."""

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.errors import UserError
from longspan.ops.counts import present

State = TypeVar("State")


def zero_padding(y: Float[Tensor, "b t d"], mask: Shaped[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
    """Return `y` with zeros where `mask` is False, or a count of zero."""
    # In one pass, where filling takes two.
    return y if mask is None else torch.where(present(mask).unsqueeze(-1), y, 0)


def left_aligned(
    mix: Callable[[Tensor, Tensor], Tensor], x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]
) -> Float[Tensor, "b t d"]:
    """Outputs of `mix(x, mask)` with the real positions of each row moved to its start, at their original positions.

    For mixers that depend on the number of a position: padding before or between tokens then changes nothing.
    """
    return left_aligned_step(lambda real, there: (mix(real, there), None), x, mask)[0]


def left_aligned_step(
    step: Callable[[Tensor, Tensor], tuple[Tensor, State]], x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]
) -> tuple[Float[Tensor, "b t d"], State]:
    """Return the same for a `step(x, mask)` that also returns a state, and that state unchanged."""
    if x.shape[1] == 1:
        return step(x, mask)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    index = order.unsqueeze(-1).expand_as(x)
    y, state = step(x.gather(1, index), mask.gather(1, order))
    return torch.zeros_like(y).scatter(1, index, y), state


def by_document(
    mix: Callable[[Tensor, Tensor], Tensor],
    x: Float[Tensor, "b t d"],
    document_ids: Int[Tensor, "b t"],
    mask: Bool[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b t d"]:
    """Return `mix(x, mask)` of each packed document in its own row, with outputs returned to the original positions.

    `document_ids` numbers the document of each token; the tokens of a document are contiguous. Documents become rows
    padded on the right to the longest, so the cost is that of separate calls in one batch.

    Raises:
        UserError: when a document's tokens are not contiguous.
    """
    if not document_ids.numel():
        return x
    starts = _starts(document_ids)
    first, place = starts.flatten(), torch.arange(starts.numel(), device=x.device)
    row, column = first.cumsum(0) - 1, place - torch.where(first, place, 0).cummax(0).values
    contiguous, last, longest = torch.stack((_contiguous(document_ids, starts), row[-1], column.max() + 1)).tolist()
    _check_contiguous(bool(contiguous))
    rows = x.new_zeros(last + 1, longest, x.shape[2]).index_put((row, column), x.flatten(0, 1))
    real = torch.ones_like(row, dtype=torch.bool) if mask is None else mask.flatten()
    rows_mask = torch.zeros(rows.shape[:2], dtype=torch.bool, device=x.device).index_put((row, column), real)
    return mix(rows, rows_mask)[row, column].view_as(x)


def document_starts(document_ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> Bool[Tensor, "b t"]:
    """Return where a scan must restart: at the first real position of each packed document.

    `document_ids` numbers the document of each token.

    Raises:
        UserError: when a document's tokens are not contiguous.
    """
    starts = _starts(document_ids)
    _check_contiguous(bool(_contiguous(document_ids, starts)))
    if mask is None:
        return starts
    # Number of real positions before the document, and up to and including this position.
    before = ((mask.cumsum(1) - mask.long()) * starts).cummax(1).values
    return mask & (mask.cumsum(1) - before == 1)


def _starts(document_ids: Tensor) -> Tensor:
    """Where a number differs from the one before it in its row, (b, t) bool."""
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return starts


def _contiguous(document_ids: Tensor, starts: Tensor) -> Tensor:
    """Whether each row has as many different numbers as places where one begins."""
    return (_starts(document_ids.sort(1).values).sum() == starts.sum()).long()


def _check_contiguous(contiguous: bool) -> None:
    if not contiguous:
        raise UserError(
            "expected the tokens of each packed document to be contiguous in document_ids, got a number that returns "
            "after another; give each document its own number."
        )
