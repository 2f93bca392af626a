"""The layers of models: blocks as transformers sees them, and stacks of them of a configuration's shape."""

from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.models.backbone import Backbone
from longspan.models.block import Block
from longspan.models.config import LongspanConfig


class LongspanLayer(GradientCheckpointingLayer, Block):
    """A block that transformers, accelerate and FSDP treat as a layer: checkpointed, placed and sharded as a whole."""


def build_backbone(config: LongspanConfig, depth: int, cross_mixers: list[str] | None) -> Backbone:
    """Return a stack of `depth` layers of a configuration's shape, with cross attention through `cross_mixers`."""
    assert config.feed_forward_dim is not None
    assert config.mixers is not None
    assert config.mixer_options is not None
    return Backbone(
        config.dim,
        depth,
        mixer_names=config.mixers,
        mixer_options=config.mixer_options,
        shared_options={
            "heads": config.heads,
            "causal": config.causal,
            "forget": config.forget,
            "rotary": config.rotary,
        },
        feed_forward_dim=config.feed_forward_dim,
        norm=config.norm,
        residual=config.residual,
        dropout=config.dropout,
        activation=config.activation,
        feed_forward_dropout=config.feed_forward_dropout,
        short_convolution=config.short_convolution,
        share_layers=config.share_layers,
        cross_mixer_names=cross_mixers,
        block=LongspanLayer,
    )
