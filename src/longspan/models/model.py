"""The model without a head: tokens in, one vector per token out."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from longspan.backbone import Backbone
from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.ops.dropout import Dropout
from longspan.positions import Positions, count_positions


class LongspanPreTrainedModel(PreTrainedModel):
    """What all longspan models share: configuration, loading, initialisation."""

    config_class = LongspanConfig
    config: LongspanConfig
    base_model_prefix = "longspan"
    supports_gradient_checkpointing = True


class LongspanModel(LongspanPreTrainedModel):
    """Embeddings, positions and a backbone of mixers.

    `forward` takes `input_ids` (b, t), or `inputs_embeds` (b, t, embedding_dim), with an `attention_mask` (b, t) that
    is 1 at real tokens (padding may stand on either side), and returns `last_hidden_state` (b, t, dim). Positions
    count from each row's first real token unless `position_ids` are given. `segments` (b, t) numbers packed documents.
    """

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        assert config.embedding_dim is not None
        assert config.feed_forward_dim is not None
        assert config.mixers is not None
        assert config.mixer_options is not None
        width = config.embedding_dim
        self.embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.positions = Positions(
            config.position, width, combine=config.position_combine, max_positions=config.max_positions
        )
        joined = self.positions.output_dim
        self.project = nn.Identity() if joined == config.dim else nn.Linear(joined, config.dim)
        self.embedding_norm = nn.LayerNorm(config.dim) if config.norm == "post" else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.backbone = Backbone(
            config.dim,
            config.depth,
            mixer_names=config.mixers,
            mixer_options=config.mixer_options,
            shared_options={"heads": config.heads, "causal": config.causal},
            feed_forward_dim=config.feed_forward_dim,
            norm=config.norm,
            residual=config.residual,
            dropout=config.dropout,
            share_layers=config.share_layers,
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        segments: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("expected either input_ids or inputs_embeds, got both or neither; give exactly one.")
        embedded = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        mask = None if attention_mask is None else attention_mask.bool()
        if self.training and self.config.token_dropout:
            kept = torch.rand(embedded.shape[:2], device=embedded.device) >= self.config.token_dropout
            embedded = embedded * kept.unsqueeze(-1)
        if position_ids is None:
            position_ids = count_positions(
                torch.ones(embedded.shape[:2], device=embedded.device) if mask is None else mask
            )
        x = self.dropout(self.embedding_norm(self.project(self.positions(embedded, position_ids))))
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states: list[Tensor] | None = [] if wanted else None
        x = self.backbone(x, mask, segments, states)
        return BaseModelOutput(last_hidden_state=x, hidden_states=None if states is None else (*states, x))
