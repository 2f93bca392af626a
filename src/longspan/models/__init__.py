"""Hugging Face classes: importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.config import LongspanConfig
from longspan.models.model import LongspanModel, LongspanPreTrainedModel

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)

__all__ = ["LongspanConfig", "LongspanForSequenceClassification", "LongspanModel", "LongspanPreTrainedModel"]
