"""Checks of the inputs of every mixer, with messages of one form: expected, got, what to do."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from longspan.errors import UserError
from longspan.ops.attention import check_context
from longspan.ops.counts import present


def check_rows(name: str, dim: int, x: Tensor, mask: Tensor | None) -> None:
    """Raise UserError unless x is (b, t, dim) and its mask fits."""
    if x.ndim != 3 or x.shape[2] != dim:
        raise UserError(
            f"{name} expected x of (batch, positions, {dim}), got {_shape(x)}; reshape it, or build the mixer with "
            "another dim."
        )
    _check_mask("mask", mask, x)


def check_documents(name: str, able: bool, x: Tensor, document_ids: Tensor | None) -> None:
    """Raise UserError for packed documents that a mixer is not `able` to take, or ids of another shape or type."""
    if document_ids is None:
        return
    if not able:
        raise UserError(
            f"{name} expected one document per row, got packed documents in document_ids; pad each document to its own "
            "row."
        )
    if document_ids.shape != x.shape[:2] or document_ids.dtype.is_floating_point:
        raise UserError(
            f"expected document_ids to be integers of shape (batch, positions) = {_shape(x[..., 0])}, got "
            f"{_shape(document_ids)} of {document_ids.dtype}; number each token's document."
        )


def check_contexts(
    name: str,
    able: bool,
    sizes: tuple[int | torch.SymInt, int],
    document_ids: Tensor | None,
    context: Tensor | None,
    context_mask: Tensor | None,
) -> None:
    """Raise UserError for a context that a mixer is not `able` to take, or not of `sizes`: rows and width of x."""
    if context is not None and not able:
        raise UserError(
            f"{name} expected no context, as it has no cross attention, got one; choose another mixer or leave it out."
        )
    check_context(document_ids, context, context_mask)
    if context is None:
        return
    rows, dim = sizes
    if context.ndim != 3 or (context.shape[0], context.shape[2]) != sizes:
        raise UserError(
            f"expected a context of ({rows}, positions, {dim}), as x has as many rows and this width, got "
            f"{_shape(context)}; give each row of x its context."
        )
    _check_mask("context_mask", context_mask, context)


def check_counts(
    name: str,
    own: tuple[Tensor, Tensor | None],
    other: tuple[Tensor | None, Tensor | None],
    document_ids: Tensor | None,
    state: Any,
) -> None:
    """Raise UserError unless counts are numbers for each position of x or of a context, and rows are whole."""
    if document_ids is not None or state is not None:
        raise UserError(
            f"{name} expected whole rows of one document with counts, got packed documents or a state; give each "
            "document its own row."
        )
    for what, (x, counts) in (("counts", own), ("context_counts", other)):
        if counts is None:
            continue
        if x is None:
            raise UserError(f"{name} expected a context with {what}, got none; also pass context=...")
        if counts.shape != x.shape[:2] or not counts.is_floating_point():
            raise UserError(
                f"{name} expected {what} of (batch, positions) = {_shape(x[..., 0])} with a fraction, got "
                f"{_shape(counts)} of {counts.dtype}; give each position a number, 1 for as it is."
            )


def check_structure(name: str, kind: type | None, structure: Any, context: Tensor | None, state: Any) -> None:
    """Raise UserError unless a structure is of the `kind` that a mixer reads, and of whole rows of one sequence."""
    if kind is None:
        raise UserError(
            f"{name} expected no structure, as it reads none, got one; choose another mixer or leave it out."
        )
    if not isinstance(structure, kind):
        raise UserError(f"{name} expected {kind.__name__} as structure, got {type(structure).__name__}; convert it.")
    if context is not None or state is not None:
        raise UserError(f"{name} expected either a structure or a context or state, got both; leave one of them out.")


def check_length(name: str, max_length: int | None, x: Tensor, mask: Tensor | None) -> None:
    """Raise UserError when a row has more real positions than `max_length`."""
    longest = x.shape[1]
    if max_length is None or longest <= max_length:
        return
    if mask is not None:
        # A batch may be padded beyond what its documents need.
        longest = int(present(mask).sum(1).max())
    if longest > max_length:
        raise UserError(
            f"{name} expected rows of at most {max_length} positions, got {longest}; shorten them or build it with a "
            "larger max_length."
        )


def check_slices(mixer: str, able: bool, beside: tuple[object, ...]) -> None:
    """Raise UserError for slices of rows that a mixer cannot read, or together with what they do not go with."""
    if not able:
        raise UserError(
            f"{mixer} cannot read rows that are cut into slices over processes; choose another mixer, such as additive "
            "or linear, or leave training.context_parallel out."
        )
    if any(each is not None for each in beside):
        raise UserError(
            f"{mixer} expected nothing besides slices of rows and their mask, got packed documents, a context, a "
            "structure, counts or a state; leave it out, or do not cut rows."
        )


def check_streaming(name: str, able: bool, causal: bool) -> None:
    """Raise UserError unless a mixer is `able` to continue from a state, and of the causal form."""
    if not able:
        raise UserError(
            f"expected a mixer that continues from a state, got {name}, which has none; choose another mixer or run "
            "whole sequences."
        )
    if not causal:
        raise UserError("expected a causal mixer for a state, got causal=False; build it with causal=True.")


def check_state(name: str, x: Tensor, state: Any) -> None:
    """Raise UserError unless a state has as many rows as x."""
    rows = {tensor.shape[0] for tensor in tree_leaves(state) if isinstance(tensor, Tensor) and tensor.ndim}
    if rows - {x.shape[0]}:
        raise UserError(
            f"{name} expected a state with {x.shape[0]} rows, like x, got one with {max(rows)}; begin with "
            f"init_state({x.shape[0]})."
        )


def check_weights(name: str, able: bool) -> None:
    """Raise UserError unless a mixer is `able` to weigh the positions of a context."""
    if not able:
        raise UserError(
            f"expected a mixer whose cross attention has a weight for each position of the context, got {name}, which "
            "has none; choose another mixer."
        )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _check_mask(name: str, mask: Tensor | None, x: Tensor) -> None:
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise UserError(
            f"expected {name} to be bool of (batch, positions) = {_shape(x[..., 0])}, True at real tokens, got "
            f"{_shape(mask)} of {mask.dtype}; convert it with {name}.bool(), or pass the mask of these rows."
        )
