"""Hugging Face classes: importing this registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from longspan.models.causal_lm import LongspanForCausalLM
from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.config import LongspanConfig
from longspan.models.evidence import LongspanForEvidence
from longspan.models.masked_lm import LongspanForMaskedLM
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.question_answering import LongspanForQuestionAnswering
from longspan.models.recommendation import LongspanForRecommendation
from longspan.models.states import MixerStates
from longspan.models.token_classification import LongspanForTokenClassification

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM)
AutoModelForQuestionAnswering.register(LongspanConfig, LongspanForQuestionAnswering)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification)

__all__ = [
    "LongspanConfig",
    "LongspanForCausalLM",
    "LongspanForEvidence",
    "LongspanForMaskedLM",
    "LongspanForQuestionAnswering",
    "LongspanForRecommendation",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "MixerStates",
]
