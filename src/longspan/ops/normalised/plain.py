"""Vectors scaled to a length in plain operations, for every device."""

import torch
from torch import Tensor


def normalised(x: Tensor, length: float, epsilon: float) -> Tensor:
    size = x.detach().abs().amax(-1, keepdim=True).clamp_min(1)
    x = x / size
    return x * (torch.rsqrt(x.square().sum(-1, keepdim=True) + epsilon / size.square()) * length)
