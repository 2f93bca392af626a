"""Comparisons that tests of several mixers make."""

import torch
from torch import Tensor


def close_with_gradients(y: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Compare outputs, and the gradients of their squares by `inputs`."""
    torch.testing.assert_close(y, expected)
    got = torch.autograd.grad((y**2).sum(), inputs)
    torch.testing.assert_close(got, torch.autograd.grad((expected**2).sum(), inputs))
