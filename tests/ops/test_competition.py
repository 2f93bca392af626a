"""Softmax over positions, and the algebra of heads on pooled rows."""

import pytest
import torch
from torch import nn

from longspan.ops import competition


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_softmax_leaves_padding_out_of_the_normaliser(dtype: torch.dtype) -> None:
    """Known failure elsewhere: padding zeroed in the values but left in the normaliser; empty rows uniform or NaN."""
    logits = torch.tensor([[[0.0, 1e4, 0.0]], [[1.0, 2.0, 3.0]]], dtype=dtype)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    weights = competition.position_softmax(logits, mask)
    assert weights.tolist() == [[[0.5, 0.0, 0.5]], [[0.0, 0.0, 0.0]]]
    assert weights.dtype == torch.float32


def test_projections_of_pooled_rows_are_pooled_projections() -> None:
    x, projection = torch.randn(2, 5, 6).double(), nn.Linear(6, 6).double()
    weights = torch.randn(2, 3, 5).double().softmax(2)
    pooled = competition.project_heads(weights @ x, projection.weight, projection.bias)
    expected = torch.einsum("bht,bthe->bhe", weights, projection(x).unflatten(2, (3, 2)))
    torch.testing.assert_close(pooled, expected)
    scores = x @ competition.against_keys(pooled, projection.weight).mT
    keys = (x @ projection.weight.T).unflatten(2, (3, 2))
    torch.testing.assert_close(scores, torch.einsum("bhe,bthe->bth", pooled, keys))


def test_handing_out_is_the_projected_concatenation_of_heads() -> None:
    weights, answers, matrix = torch.randn(2, 3, 5), torch.randn(2, 3, 2), torch.randn(6, 6)
    joined = (weights.unsqueeze(-1) * answers.unsqueeze(2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(competition.hand_out(weights, answers, None), joined)
    torch.testing.assert_close(competition.hand_out(weights, answers, matrix), joined @ matrix.T)
