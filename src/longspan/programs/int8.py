"""Linear layers in 8 bits, in operations that programs can hold: `quantized`."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

# The largest integers of rows and of weights, and a scale for rows of zeros. Weights keep to 64 because processors with
# AVX2 alone add two products in 16 bits, (127 + 128) · 64 · 2 = 32,640 of 32,767 (ONNX Runtime calls it
# `reduce_range`). On every processor, since a program runs on others than the one that made it.
_LARGEST_ROW, _LARGEST_WEIGHT, _TINY = 127.0, 64.0, 1e-30


class Int8Linear(nn.Module):
    """y = s_x s_w ⊙ (q_x Q_wᵀ) + b with int8 q_x and Q_w and int32 sums.

    Each row w of W has its scale s_w = max|w| / 64, found once, and each row of x its own, max|x| / 127, found in each
    call (dynamic quantisation, as torchao's int8 weights with int8 activations). Not
    `torch.ao.quantization.quantize_dynamic`, whose packed weights torch.export cannot store.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp_min(_TINY) / _LARGEST_WEIGHT
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.quantized: Tensor
        self.scale: Tensor
        self.register_buffer("quantized", (weight / scale.unsqueeze(1)).round().to(torch.int8).T.contiguous())
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(_TINY) / _LARGEST_ROW
        sums = torch._int_mm((rows / scale).round().to(torch.int8), self.quantized)
        # In place: new tensors of this size cost more than the product.
        y = sums.to(x.dtype).mul_(scale).mul_(self.scale)
        if self.bias is not None:
            y.add_(self.bias)
        return y.view(*x.shape[:-1], self.out_features)


def quantized(model: PreTrainedModel, run: Callable[[PreTrainedModel], object]) -> tuple[PreTrainedModel, int]:
    """Return a copy of a model with the linear layers in 8 bits that `run` calls, and how many these are.

    Layers whose weights are only read, as by mixers that fold their projections, stay as they are: their products have
    other matrices, and would be no faster.
    """
    model = copy.deepcopy(model)
    called: set[nn.Module] = set()
    # A hook for all modules, as one of their own would have mixers call what they otherwise read.
    handle = register_module_forward_hook(lambda module, inputs, output: called.add(module))
    try:
        with torch.no_grad():
            run(model)
    finally:
        handle.remove()
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child in called:
                setattr(parent, name, Int8Linear(child))
                count += 1
    return model, count
