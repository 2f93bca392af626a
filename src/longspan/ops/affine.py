"""The matrix and the bias of an affine module, for products computed in another order than the module's own."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from longspan.errors import UserError

# The identity is scaled by this power of two before a module sees it, so that a bias added to the rows of the matrix
# rounds off none of their digits that matter: 8 more bits. Half precision has room for it up to entries of 255.
SCALE = 256.0


def weight_and_bias(module: nn.Module) -> tuple[Float[Tensor, "out d"], Float[Tensor, " out"] | None]:
    """Return W and b with `module(x)` = Wx + b, differentiable with respect to the module's parameters.

    They are read from a plain `nn.Linear`. Any other affine module is applied to zeros and to the identity, which costs
    d products of one row. Such modules are adapters (LoRA), quantised layers, weights that are offloaded, sharded,
    parametrised or pruned, and modules with hooks. b is then never None. Autocast is switched off, so that W and b have
    the module's own precision, as a parameter would. Rounding in a module (a quantised one may round its input) is not
    affine: W and b are then those of the unrounded input.

    Dropout in a module, as LoRA has it before its adapters, zeroes columns of the adapters' part of W. Each call draws
    the dropped input features once for all positions and rows (variational dropout, Gal and Ghahramani 2016); the
    module itself would draw for each position. The mean of W is the same. So a forward pass should call this once for
    each module, and not inside a block that is computed again without its random state.

    Raises:
        UserError: when the width of the input is unknown, as neither the module nor any in it has `in_features`.
    """
    if isinstance(module, nn.Linear) and is_plain(module):
        return module.weight, module.bias
    width = _input_width(module)
    device, dtype = _place(module)
    with torch.autocast(device.type, enabled=False):
        bias: Tensor = module(torch.zeros(1, width, dtype=dtype, device=device))[0]
        scaled: Tensor = module(SCALE * torch.eye(width, dtype=dtype, device=device))
    return ((scaled - bias) / SCALE).mT, bias


def is_plain(module: nn.Linear) -> bool:
    """Return whether calling `module` does no more than multiply by its weight and add its bias.

    Hooks for all modules of the process do not count: they are those of profilers and of counters of operations.
    """
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)  # accelerate's hooks, which fetch offloaded weights, replace it.
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and not is_traceable_wrapper_subclass(module.weight)  # Sharded or quantised.
    )


def _input_width(module: nn.Module) -> int:
    for inner in module.modules():
        width = getattr(inner, "in_features", None)
        if isinstance(width, int):
            return width
    raise UserError(
        f"expected an affine module with in_features, as nn.Linear has, got {type(module).__name__}; give it that "
        "attribute, or leave this projection unchanged."
    )


def _place(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and dtype of `module`. Some quantised modules have no parameters, and are on a CPU."""
    weight = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), None)
    if weight is None:
        return torch.device("cpu"), torch.get_default_dtype()
    device = weight.device
    if device.type == "meta":
        # Offloaded by accelerate, whose hook knows where the weight will be.
        device = torch.device(getattr(getattr(module, "_hf_hook", None), "execution_device", None) or device)
    return device, weight.dtype
