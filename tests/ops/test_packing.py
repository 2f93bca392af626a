"""Moving rows about: to the left, and packed documents into rows of their own."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.ops.packing import document_starts, left_aligned, zero_padding


def numbered(x: Tensor, mask: Tensor) -> Tensor:
    """A function to which positions matter."""
    return x * torch.arange(1, x.shape[1] + 1).view(1, -1, 1) * mask.unsqueeze(-1)


@given(t=st.integers(1, 30), density=st.floats(0, 1))
def test_left_aligned_numbers_the_real_positions_alone(t: int, density: float) -> None:
    x, mask = torch.randn(3, t, 2), torch.rand(3, t) < density
    expected = x * mask.cumsum(1).unsqueeze(-1) * mask.unsqueeze(-1)
    assert torch.equal(left_aligned(numbered, x, mask), expected)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), density=st.floats(0, 1))
def test_documents_start_at_their_first_real_position(lengths: list[int], density: float) -> None:
    document_ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    mask = torch.rand(document_ids.shape) < density
    expected = torch.zeros_like(mask)
    for row in range(2):
        for document in range(len(lengths)):
            expected[row, ((document_ids[row] == document) & mask[row]).nonzero().flatten()[:1]] = True
    assert torch.equal(document_starts(document_ids, mask), expected)
    assert torch.equal(document_starts(document_ids), document_starts(document_ids, torch.ones_like(mask)))


def test_zero_padding_leaves_no_trace_of_what_was_there() -> None:
    y = torch.full((1, 3, 2), float("inf"))
    mask = torch.tensor([[True, False, False]])
    assert zero_padding(y, mask)[0, 1:].tolist() == [[0.0, 0.0]] * 2
    assert zero_padding(y, None) is y
