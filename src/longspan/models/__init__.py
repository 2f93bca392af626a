"""Hugging Face classes: importing this registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForAudioFrameClassification,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

# Not from `transformers`, which in some releases demands torchvision for the name.
from transformers.models.auto.image_processing_auto import AutoImageProcessor
from transformers.pipelines import PIPELINE_REGISTRY

from longspan.models.config import LongspanConfig
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.models.heads.classification import LongspanForAudioClassification, LongspanForSequenceClassification
from longspan.models.heads.document_pairs import LongspanForDocumentPairs
from longspan.models.heads.evidence import LongspanForEvidence
from longspan.models.heads.frame_classification import LongspanForAudioFrameClassification
from longspan.models.heads.graph_classification import LongspanForGraphClassification
from longspan.models.heads.image_classification import LongspanForImageClassification
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.node_classification import LongspanForNodeClassification
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.recommendation import LongspanForRecommendation
from longspan.models.heads.seq2seq import LongspanForSeq2SeqLM
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.hub.feature_extraction import LongspanFeatureExtractor
from longspan.models.hub.image_processing import LongspanImagePipeline, LongspanImageProcessor
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.states import MixerStates

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoFeatureExtractor.register(LongspanConfig, LongspanFeatureExtractor)
AutoImageProcessor.register(LongspanConfig, image_processor_classes={"pil": LongspanImageProcessor})
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForAudioClassification.register(LongspanConfig, LongspanForAudioClassification)
AutoModelForAudioFrameClassification.register(LongspanConfig, LongspanForAudioFrameClassification)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM)
AutoModelForImageClassification.register(LongspanConfig, LongspanForImageClassification)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM)
AutoModelForQuestionAnswering.register(LongspanConfig, LongspanForQuestionAnswering)
AutoModelForSeq2SeqLM.register(LongspanConfig, LongspanForSeq2SeqLM)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification)
# For other models, it is transformers' own.
PIPELINE_REGISTRY.supported_tasks["image-classification"]["impl"] = LongspanImagePipeline

__all__ = [
    "LongspanConfig",
    "LongspanFeatureExtractor",
    "LongspanForAudioClassification",
    "LongspanForAudioFrameClassification",
    "LongspanForCausalLM",
    "LongspanForDocumentPairs",
    "LongspanForEvidence",
    "LongspanForGraphClassification",
    "LongspanForImageClassification",
    "LongspanForMaskedLM",
    "LongspanForNodeClassification",
    "LongspanForQuestionAnswering",
    "LongspanForRecommendation",
    "LongspanForSeq2SeqLM",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanImageProcessor",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "MixerStates",
]
