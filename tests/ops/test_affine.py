"""W and b of affine modules, however they are wrapped: the map they give is the module's own."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from longspan.errors import UserError
from longspan.ops.affine import weight_and_bias


def lora(linear: nn.Linear, dropout: float = 0.0) -> nn.Module:
    from peft.tuners.lora import LoraConfig
    from peft.tuners.lora.layer import Linear

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, init_lora_weights=False)
    wrapped: nn.Module = Linear(linear, "default", config=config, r=4, lora_alpha=8, lora_dropout=dropout)
    return wrapped


def offloaded(linear: nn.Linear, folder: Path) -> nn.Module:
    from accelerate import disk_offload

    wrapper = nn.Sequential(linear)
    disk_offload(wrapper, str(folder), execution_device=torch.device("cpu"))
    return wrapper[0]


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked(linear: nn.Linear) -> nn.Module:
    linear.register_forward_hook(lambda module, inputs, output: 3 * output)
    return linear


def hooked_before(linear: nn.Linear) -> nn.Module:
    linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] - 1,))
    return linear


def pruned(linear: nn.Linear) -> nn.Module:
    prune.random_unstructured(linear, "weight", 0.5)
    # Until the module runs, its weight is what it was: as after an optimiser's step.
    with torch.no_grad():
        linear.get_parameter("weight_orig").add_(1)
    return linear


def patched(linear: nn.Linear) -> nn.Module:
    vars(linear)["forward"] = lambda x: -nn.functional.linear(x, linear.weight, linear.bias)
    return linear


WRAPPERS: dict[str, Any] = {
    "plain": lambda linear: linear,
    "lora": lora,
    "subclass": lambda linear: Doubled(6, 5, bias=linear.bias is not None),
    "sequence": lambda linear: nn.Sequential(linear, nn.Linear(5, 5)),
    "hook": hooked,
    "hook before": hooked_before,
    "parametrised": lambda linear: parametrizations.weight_norm(linear),
    "pruned": pruned,
    "patched": patched,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_map_is_the_module_s(name: str, bias: bool) -> None:
    """In float64, output and all gradients: LoRA, subclasses, hooks, parametrisations, patches."""
    module = WRAPPERS[name](nn.Linear(6, 5, bias=bias)).double()
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    weight, offset = weight_and_bias(module)
    expected, found = module(x), nn.functional.linear(x, weight, offset)
    torch.testing.assert_close(found, expected)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    upstream = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, parameters, upstream),
        torch.autograd.grad(expected, parameters, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_plain_linear_s_parameters_are_read() -> None:
    module = nn.Linear(6, 5)
    weight, bias = weight_and_bias(module)
    assert weight is module.weight
    assert bias is module.bias


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_large_bias_rounds_off_no_digits_of_the_matrix(dtype: torch.dtype) -> None:
    linear = nn.Linear(16, 8, dtype=dtype)
    with torch.no_grad():
        linear.bias.fill_(10)
    weight, bias = weight_and_bias(nn.Sequential(linear))
    assert bias is not None
    assert weight.dtype == dtype
    # Entries of 0.25 are rounded beside 10/SCALE = 0.04: to half a unit of the type, and as much in the difference.
    torch.testing.assert_close(weight, linear.weight, rtol=0, atol=0.5 * torch.finfo(dtype).eps)
    assert torch.equal(bias, linear.bias)


def test_under_autocast_the_module_s_precision_is_kept() -> None:
    module = lora(nn.Linear(6, 5))
    expected, _ = weight_and_bias(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weight, bias = weight_and_bias(module)
    assert bias is not None
    assert weight.dtype == bias.dtype == torch.float32
    assert torch.equal(weight, expected)


@pytest.mark.slow
def test_dropout_before_adapters_drops_features_and_keeps_the_mean() -> None:
    linear = nn.Linear(6, 5)
    module = lora(linear, dropout=0.5)
    exact, _ = weight_and_bias(module.eval())
    draws = torch.stack([weight_and_bias(module.train())[0].detach() for _ in range(4000)])
    adapters = exact - linear.weight
    # Whole columns of the adapters' part, or twice as much.
    assert (draws[0] - exact).abs().amax(0).sub(adapters.abs().amax(0)).abs().max() < 1e-5
    # Four standard errors of a mean of 4,000 draws of 0 or 2.
    assert ((draws.mean(0) - exact).abs() <= 4 * adapters.abs() / 4000**0.5 + 1e-5).all()


def test_dynamically_quantised_layers() -> None:
    """Their weights are rounded, and so are their inputs: to 1/127 of the largest."""
    with warnings.catch_warnings():
        # torch.ao asks for a move to torchao.
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(32, 8)), {nn.Linear})[0]
    weight, bias = weight_and_bias(module)
    rounded, offset = module._weight_bias()
    torch.testing.assert_close(weight, rounded.dequantize(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, offset)


def test_weights_offloaded_to_disk(tmp_path: Path) -> None:
    module = nn.Linear(6, 5)
    there = offloaded(copy.deepcopy(module), tmp_path)
    assert there.weight.is_meta
    weight, bias = weight_and_bias(there)
    torch.testing.assert_close(weight, module.weight)
    torch.testing.assert_close(bias, module.bias)


def test_compiled_and_exported(no_shape_checks: None) -> None:
    """A plain module leaves one product in the graph, and no identity."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            weight, bias = weight_and_bias(self.inner)
            return nn.functional.linear(x, 2 * weight, bias)

    module, x = Folded(), torch.randn(3, 6)
    expected = module(x)
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), expected)
    for strict in (False, True):
        graph = torch.export.export(module, (x,), strict=strict)
        torch.testing.assert_close(graph.module()(x), expected)
        assert "eye" not in str(graph.graph)


def test_adapters_compile(no_shape_checks: None) -> None:
    module, x = lora(nn.Linear(6, 5)), torch.randn(3, 6)

    def folded(x: Tensor) -> Tensor:
        return nn.functional.linear(x, *weight_and_bias(module))

    torch.testing.assert_close(torch.compile(folded, backend="eager")(x), module(x))


def test_a_module_of_unknown_width_is_refused() -> None:
    with pytest.raises(UserError, match=r"expected an affine module with in_features, as nn.Linear has, got Identity"):
        weight_and_bias(nn.Identity())
