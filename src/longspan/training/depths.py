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
    """Number of layers above each parameter, by its `id`.

    None is above the last layer and above heads; all are above embeddings, those of n-grams and positions and a
    pretrained encoder among them. Of layers that share weights, the last one counts. The layers of a decoder are above
    those of its encoder.

    Raises:
        UserError: The model has no layers of longspan.
    """
    found = {id(parameter): 0 for parameter in model.parameters()}
    bodies = _bodies(model)
    above = sum(body.backbone.depth for body in bodies)
    for body in bodies:
        found |= {id(parameter): above for parameter in body.parameters()}
    for backbone in (body.backbone for body in bodies):
        above -= backbone.depth
        found |= {id(parameter): above for parameter in backbone.parameters()}
        for layer, block in enumerate(backbone.layers):
            found |= {id(parameter): above + backbone.depth - 1 - layer for parameter in block.parameters()}
    return found


def _bodies(model: PreTrainedModel) -> list[Any]:
    """Return the parts of a model that have layers, the one that others read first."""
    config = getattr(model, "config", None)
    bodies = [model.base_model, *([model.get_decoder()] if getattr(config, "is_encoder_decoder", False) else [])]
    if not all(isinstance(getattr(body, "backbone", None), Backbone) for body in bodies):
        raise UserError(
            "expected a model with the layers of longspan for training.layer_decay or training.freeze, got "
            f"{type(model).__name__}; leave them out."
        )
    return bodies


def freeze(model: PreTrainedModel, frozen: str | int) -> None:
    """Leave a part of a model as it is in training.

    Args:
        model: The model.
        frozen: "embeddings"; "backbone", which is these and all layers; or how many layers from below, with these. ""
            is nothing. A decoder's layers follow its encoder's, and its embeddings go with its encoder's.

    Raises:
        UserError: There are not as many layers, or nothing is left to train.
    """
    if frozen == "":
        return
    above, bodies = layers_above(model), _bodies(model)
    depth = sum(body.backbone.depth for body in bodies)
    least = {EMBEDDINGS: depth, BACKBONE: 0}[frozen] if isinstance(frozen, str) else depth - frozen
    if least < 0:
        raise UserError(f"expected training.freeze of at most {depth} layers, got {frozen}; choose fewer.")
    for parameter in (parameter for body in bodies for parameter in body.parameters()):
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
