"""Weights, gradients and optimizer states divided among processes: `Shards`, on PyTorch's FSDP2 (`fully_shard`).

Accelerate's FSDP does nothing on CPUs, and says so nowhere; so `fully_shard` is called here, and accelerate sees none.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor, zeros
from torch.optim import Optimizer
from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.training import processes

KINDS = {"full_shard": True, "shard_grad_op": False}
"""Values of `training.fsdp`, and whether each layer's weights are divided again between forward and backward pass."""

OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "rmsprop", "adagrad", "muon", "coupled_adam")
"""Optimizers whose steps are the same with divided states."""


def check(training: Mapping[str, Any]) -> None:
    """Check a recipe's `[training]` for optimizers and launchers that do not go with divided weights.

    Raises:
        UserError: There is one.
    """
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        raise UserError(
            "expected training.fsdp=full_shard in the recipe, got accelerate's own FSDP (--use_fsdp), which does "
            "nothing on CPUs and cannot score models here; leave --use_fsdp out."
        )
    if training.get("fsdp_config"):
        raise UserError("expected no training.fsdp_config, which longspan does not read, got one; leave it out.")
    given = training.get("fsdp")
    if not given:
        return
    if given is not True and given not in (names := list(KINDS)):
        raise UserError(f"expected training.fsdp={' or '.join(names)}, got {given!r}; choose one of these.")
    optimizer = training.get("optim", OPTIMIZERS[0])
    if optimizer not in OPTIMIZERS:
        raise UserError(
            f"expected an optimizer that works on parts of weights for training.fsdp, got training.optim={optimizer}; "
            f"choose among {', '.join(OPTIMIZERS)}."
        )


class Shards:
    """A copy of a model for training, with the weights divided among all processes.

    The model keeps its modules and buffers, which the copy shares; its weights are in memory only while they are
    `gathered`. So whatever scores, saves or generates has a plain model, in which processes need not make equal numbers
    of forward passes. The cost is memory for whole weights meanwhile, without gradients and optimizer states.

    Each layer (`_no_split_modules`) is gathered by itself in forward and backward passes; everything else, such as
    embeddings with the head that they are tied to, stays gathered from the beginning of a step to its end.

    Args:
        model: The model, the same in all processes.
        reshard: Whether a layer is divided again after its forward pass.

    Attributes:
        module: The copy.
    """

    def __init__(self, model: PreTrainedModel, *, reshard: bool) -> None:
        self._model = model
        shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
        for weight in model.parameters():
            # FSDP divides no scalar.
            data = weight.detach()
            shared[id(weight)] = nn.Parameter(data if data.ndim else data.view(1), weight.requires_grad)
        self.module = copy.deepcopy(model, shared)
        mesh = init_device_mesh(model.device.type, (processes.count(),))
        layers = set(model._no_split_modules or ())
        for module in [each for each in self.module.modules() if type(each).__name__ in layers]:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self.module, mesh=mesh)
        self._release()

    @contextlib.contextmanager
    def gathered(self, *, keep: bool = True) -> Iterator[None]:
        """Give the model its weights in the `with` block. All processes enter it; those without `keep` only help."""
        self.gather(keep=keep)
        try:
            yield
        finally:
            self._release()

    @torch.no_grad()
    def gather(self, *, keep: bool = True) -> None:
        """Give the model the present weights. All processes call this."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for weight, part in zip(self._model.parameters(), self.module.parameters(), strict=True):
            whole = whole_of(part.detach())
            if keep:
                weight.data = whole.view(weight.shape)

    def _release(self) -> None:
        for weight in self._model.parameters():
            # Whoever uses them by mistake gets no number.
            weight.data = weight.new_full((), torch.nan).expand(weight.shape)

    def share_states(self, optimizer: Optimizer) -> None:
        """Let an optimizer of the copy save and load the states that one of the whole model has.

        All processes call its `state_dict`. A run can thus be resumed by any number of processes.
        """
        weights, parts = self._model.parameters(), self.module.parameters()
        shapes = {part: weight.shape for weight, part in zip(weights, parts, strict=True)}

        def whole(part: Any, name: str, value: Any) -> Any:
            gathered = whole_of(value)
            return gathered.view(shapes[part]) if isinstance(value, DTensor) and value.shape == part.shape else gathered

        def divided(part: Any, name: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or name == "step":
                return value
            return part_of(value.view(part.shape) if value.shape == shapes[part] else value, part)

        def changed(state: dict[str, Any], change: Callable[[Any, str, Any], Any]) -> dict[str, Any]:
            own = [part for group in optimizer.param_groups for part in group["params"]]
            values = {
                number: {name: change(own[number], name, value) for name, value in each.items()}
                for number, each in state["state"].items()
            }
            return {**state, "state": values}

        optimizer.register_state_dict_post_hook(lambda _, state: changed(state, whole))
        optimizer.register_load_state_dict_pre_hook(lambda _, state: changed(state, divided))


def whole_of(tensor: Any) -> Any:
    """The whole tensor, in all processes, of one that is divided among them; all call this. Others are returned."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor that all processes have, divided as `like` is, if that is divided."""
    return (
        distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
        if isinstance(like, DTensor)
        else whole
    )


def local_of(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def zeros_by_row(table: Tensor) -> Tensor:
    """Zeros (rows,) in float32, divided as a table (rows, ...) is."""
    if isinstance(table, DTensor):
        return zeros(len(table), dtype=torch.float32, device_mesh=table.device_mesh, placements=table.placements)
    return torch.zeros(len(table), dtype=torch.float32, device=table.device)
