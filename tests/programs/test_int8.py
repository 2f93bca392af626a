"""Linear layers in 8 bits."""

import copy
from typing import cast

import pytest
import torch
from torch import Tensor

from longspan import LongspanConfig, LongspanForSequenceClassification, mixers
from longspan.models.heads.classification import Pooling
from longspan.ops.affine import weight_and_bias
from longspan.programs.int8 import Int8Linear, quantized


class Rounded(torch.nn.Linear):
    """The reference: weights rounded to 129 steps and rows to 255, products of floating-point numbers."""

    def forward(self, input: Tensor) -> Tensor:
        step = input.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return torch.nn.functional.linear((input / step).round() * step, self.weight, self.bias)


def rounded(linear: torch.nn.Linear) -> Rounded:
    steps = linear.weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 64
    reference = Rounded(linear.in_features, linear.out_features, linear.bias is not None)
    reference.weight = torch.nn.Parameter((linear.weight / steps).round() * steps)
    reference.bias = linear.bias
    return reference


def test_a_layer_rounds_weights_to_129_steps_and_rows_to_255() -> None:
    linear, x = torch.nn.Linear(24, 10).double(), torch.randn(2, 7, 24, dtype=torch.float64)
    small, reference = Int8Linear(linear), rounded(linear)
    torch.testing.assert_close(small(x), reference(x))
    torch.testing.assert_close(weight_and_bias(small)[0], reference.weight)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_are_not_cut(sign: int) -> None:
    """Known failure: processors with AVX2 alone add pairs of products in 16 bits, which saturate."""
    linear = torch.nn.Linear(140, 3, bias=False)
    torch.nn.init.constant_(linear.weight, sign)
    x = torch.stack((torch.ones(140), -torch.ones(140)))
    # Sums of 140 ones times a scale that float32 rounds twice.
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x), rtol=1e-6, atol=0)


def test_zeros_stay_zeros() -> None:
    linear = torch.nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        linear.weight[1] = 0
    y = Int8Linear(linear)(torch.stack((torch.zeros(4), torch.ones(4))))
    assert (y[0] == 0).all()
    assert y[1, 1] == 0
    assert y.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", mixers.names())
def test_every_mixer_runs_as_with_rounded_layers(name: str) -> None:
    config = LongspanConfig(vocab_size=30, dim=32, depth=2, heads=4, mixers=[name], num_labels=3)
    model = LongspanForSequenceClassification(config).eval().double()
    inputs = {"input_ids": torch.randint(1, 30, (3, 40)), "attention_mask": torch.ones(3, 40, dtype=torch.long)}
    inputs["attention_mask"][0, 25:] = 0
    small, layers = quantized(model, lambda other: other(**inputs))
    assert layers >= 5
    # The copy alone is changed.
    assert not any(isinstance(module, Int8Linear) for module in model.modules())
    reference = copy.deepcopy(model)
    for path, module in small.named_modules():
        if isinstance(module, Int8Linear):
            reference.set_submodule(path, rounded(cast(torch.nn.Linear, model.get_submodule(path))))
    with torch.no_grad():
        before, after, expected = (other(**inputs).logits for other in (model, small, reference))
    assert not torch.equal(before, after)
    # In float64, rounding errors are far too small to move a number to its next step.
    torch.testing.assert_close(after, expected)


def test_layers_whose_weights_are_only_read_stay() -> None:
    """Known failure elsewhere: folded projections cannot be read from quantised layers, or are read in every call."""
    config = LongspanConfig(vocab_size=30, dim=32, depth=1, heads=4, mixers=["additive"], num_labels=3)
    model = LongspanForSequenceClassification(config).eval()
    small, _ = quantized(model, lambda other: other(input_ids=torch.ones(1, 5, dtype=torch.long)))
    assert not any(isinstance(module, Int8Linear) for module in small.longspan.backbone.blocks[0].mixer.modules())
    pooling = small.pooling
    assert isinstance(pooling, Pooling)
    assert isinstance(pooling.hidden, Int8Linear)
