"""A masked language model: masked tokens are predicted from both sides."""

from dataclasses import dataclass
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from longspan.errors import UserError
from longspan.models.block import ACTIVATIONS
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.tokens import token_settings
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import IGNORED, check_token_labels, mean_loss, output_losses, positions_to_score
from longspan.models.settings import HeadSettings


@strict
@dataclass
class MaskedLmSettings(HeadSettings):
    """Settings of a masked language model: no settings of its own."""


class LongspanForMaskedLM(LongspanPreTrainedModel):
    """Predict masked tokens with BERT's head: linear layer, activation, norm, and the word vectors as output weights.

    `forward` takes the arguments of `LongspanModel` and `labels` (b, t), -100 where nothing is to be predicted. It
    returns the `loss` and the `logits` (b, t, vocab_size). The loss is the mean nats over the labels, or their sum
    divided by `num_items_in_batch`. With `logits_to_keep`, logits are those of the last positions (all for 0; a tensor
    gives positions). With labels in training, only labelled positions need scores, so there are no `logits` unless
    `logits_to_keep` is given.

    Raises:
        UserError: for a causal configuration, or one with cutoffs or an encoder.
    """

    head_settings = MaskedLmSettings
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "longspan.embeddings.table.weight"}

    def __init__(self, config: LongspanConfig) -> None:
        if config.causal:
            raise UserError("LongspanForMaskedLM expected causal=False, got causal=True; set causal=False.")
        if token_settings(config, "LongspanForMaskedLM").cutoffs is not None:
            raise UserError("LongspanForMaskedLM expected no cutoffs, as it has one softmax, got some; leave them out.")
        super().__init__(config)
        config = self.config
        assert config.embedding_dim is not None
        self.longspan = LongspanModel(config)
        self.transform = nn.Sequential(
            nn.Linear(config.dim, config.embedding_dim),
            ACTIVATIONS[config.activation](),
            nn.LayerNorm(config.embedding_dim),
        )
        self.lm_head = nn.Linear(config.embedding_dim, config.vocab_size)
        self.post_init()

    @delegate_args("inputs_embeds", "document_ids", "counts")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> MaskedLMOutput:
        body = self.longspan(input_ids=input_ids, attention_mask=attention_mask, **read)
        hidden = body.last_hidden_state
        loss, logits = None, None
        if logits_to_keep is None and (labels is None or not self.training):
            logits_to_keep = 0
        if logits_to_keep is not None:
            logits = self.scores(positions_to_score(hidden, logits_to_keep))
        if labels is not None:
            check_token_labels("labels", labels, hidden.shape[:2])
            labelled = labels != IGNORED
            known = self.transform(hidden[labelled])
            losses = output_losses(self.lm_head, known, labels[labelled], self.config.vocab_size)
            loss = mean_loss(losses, losses.numel(), num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logits (*n, vocab_size) of outputs (*n, dim) of the model without its head."""
        logits: Tensor = self.lm_head(self.transform(hidden))
        return logits
