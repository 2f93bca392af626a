"""Learning rates and freezing by depth: what is near the tokens is more general than what is near the output."""

from typing import Any

from torch.optim import Optimizer
from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.models.backbone import Backbone

EMBEDDINGS, BACKBONE = "embeddings", "backbone"
FROZEN = (EMBEDDINGS, BACKBONE)
"""What can be frozen besides a number of layers."""


def layers_above(model: PreTrainedModel) -> dict[int, int]:
    """Return how many layers there are above each parameter, by its `id`.

    None is above the last layer and above heads; all are above embeddings, those of n-grams and positions and a
    pretrained encoder among them. Of layers that share weights, the last one counts.

    Raises:
        UserError: The model has no layers of longspan.
    """
    body = model.base_model
    backbone = getattr(body, "backbone", None)
    if not isinstance(backbone, Backbone):
        raise UserError(
            "expected a model with the layers of longspan for training.layer_decay or training.freeze, got "
            f"{type(model).__name__}; leave them out."
        )
    found = {id(parameter): 0 for parameter in model.parameters()}
    found |= {id(parameter): backbone.depth for parameter in body.parameters()}
    found |= {id(parameter): 0 for parameter in backbone.parameters()}
    for layer, block in enumerate(backbone.layers):
        found |= {id(parameter): backbone.depth - 1 - layer for parameter in block.parameters()}
    return found


def freeze(model: PreTrainedModel, frozen: str | int) -> None:
    """Leave a part of a model as it is in training.

    Args:
        model: The model.
        frozen: "embeddings"; "backbone", which is these and all layers; or how many layers from below, with these. ""
            is nothing.

    Raises:
        UserError: There are not as many layers, or nothing is left to train.
    """
    if frozen == "":
        return
    above, depth = layers_above(model), model.base_model.backbone.depth
    least = {EMBEDDINGS: depth, BACKBONE: 0}[frozen] if isinstance(frozen, str) else depth - frozen
    if least < 0:
        raise UserError(f"expected training.freeze of at most {depth} layers, got {frozen}; choose fewer.")
    for parameter in model.base_model.parameters():
        if above[id(parameter)] >= least:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"expected something to train, got a model that training.freeze={frozen} freezes; freeze less.")


def decay(optimizer: Optimizer, model: PreTrainedModel, factor: float) -> None:
    """Multiply the learning rates of an optimizer's parameters by `factor` for each layer above them.

    Its groups are split, those with the full rate first.

    Source: Howard and Ruder 2018, "discriminative fine-tuning", https://arxiv.org/abs/1801.06146

    Raises:
        UserError: The optimizer has no learning rate of its own.
    """
    above, groups = layers_above(model), []
    for group in optimizer.param_groups:
        if group.get("lr") is None:
            raise UserError(
                f"expected an optimizer with a learning rate for training.layer_decay, got {type(optimizer).__name__}, "
                "which finds its own; choose another in training.optim, or leave layer_decay out."
            )
        by_depth: dict[int, list[Any]] = {}
        for parameter in group["params"]:
            if id(parameter) not in above:
                raise UserError(
                    "expected unsharded weights for training.layer_decay, got weights sharded over processes; leave it "
                    "out."
                )
            by_depth.setdefault(above[id(parameter)], []).append(parameter)
        groups += [
            (count, {**group, "params": those, "lr": group["lr"] * factor**count}) for count, those in by_depth.items()
        ]
    optimizer.param_groups[:] = [group for _, group in sorted(groups, key=lambda pair: pair[0])]
