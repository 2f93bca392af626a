"""Sequence models whose cost grows linearly with length: train, compare, stream and understand them.

Importing this loads nothing heavy: names below come from their modules when first used.
"""

import importlib
from typing import Any

from longspan.machine import moved

_LAZY = {
    "LongspanConfig": "longspan.models",
    "LongspanFeatureExtractor": "longspan.models",
    "LongspanForAudioClassification": "longspan.models",
    "LongspanForAudioFrameClassification": "longspan.models",
    "LongspanForCausalLM": "longspan.models",
    "LongspanForDocumentPairs": "longspan.models",
    "LongspanForEvidence": "longspan.models",
    "LongspanForGraphClassification": "longspan.models",
    "LongspanForImageClassification": "longspan.models",
    "LongspanForMaskedLM": "longspan.models",
    "LongspanForNodeClassification": "longspan.models",
    "LongspanForQuestionAnswering": "longspan.models",
    "LongspanForRecommendation": "longspan.models",
    "LongspanForSeq2SeqLM": "longspan.models",
    "LongspanForSequenceClassification": "longspan.models",
    "LongspanForTokenClassification": "longspan.models",
    "LongspanImageProcessor": "longspan.models",
    "LongspanModel": "longspan.models",
    "Predictor": "longspan.verbs.predictor",
    "TrainedRun": "longspan.verbs.trained",
    "UserError": "longspan.errors",
    "arena": "longspan.verbs.arena",
    "bench": "longspan.verbs.bench",
    "compare": "longspan.verbs.compare",
    "evaluate": "longspan.verbs.evaluate",
    "explain": "longspan.verbs.explain",
    "export": "longspan.verbs.export",
    "generate": "longspan.verbs.trained",
    "load": "longspan.verbs.trained",
    "plan": "longspan.verbs.plan",
    "predict": "longspan.verbs.predict",
    "replace_attention": "longspan.models.replacing",
    "suggest": "longspan.verbs.suggest",
    "train": "longspan.verbs.train",
    "write_report": "longspan.verbs.report",
}

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
    "Predictor",
    "TrainedRun",
    "UserError",
    "arena",
    "bench",
    "compare",
    "evaluate",
    "explain",
    "export",
    "generate",
    "load",
    "plan",
    "predict",
    "replace_attention",
    "suggest",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading what is installed takes longer than all of this.
        from importlib import metadata

        try:
            return metadata.version("longspan")
        except metadata.PackageNotFoundError:
            return "unknown"
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


moved.install()
