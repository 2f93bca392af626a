"""Hugging Face classes: importing this registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from longspan.models.causal_lm import LongspanForCausalLM
from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.config import LongspanConfig
from longspan.models.masked_lm import LongspanForMaskedLM
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.states import MixerStates

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)

__all__ = [
    "LongspanConfig",
    "LongspanForCausalLM",
    "LongspanForMaskedLM",
    "LongspanForSequenceClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "MixerStates",
]
