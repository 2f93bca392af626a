"""The file with which transformers loads a model where nothing has imported longspan: `modeling_longspan.py`.

`longspan export --format hub` writes it, and so does whoever saves a model that was loaded from such an export.
"""

from collections.abc import Mapping
from pathlib import Path

from longspan.results.outputs import write_text

FILE = "modeling_longspan.py"
#: What it has, the same for every model.
MODELING = '''\
"""Classes of longspan models for transformers: this file imports them, and has no other code."""

try:
    from longspan.models import (
        LongspanConfig,
        LongspanFeatureExtractor,
        LongspanForAudioClassification,
        LongspanForAudioFrameClassification,
        LongspanForCausalLM,
        LongspanForImageClassification,
        LongspanForMaskedLM,
        LongspanForQuestionAnswering,
        LongspanForSeq2SeqLM,
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
        LongspanImageProcessor,
        LongspanModel,
    )
except ModuleNotFoundError as error:
    if error.name != "longspan":
        raise
    raise ImportError(
        "This model expected the package 'longspan', which is not installed: `pip install longspan`."
    ) from None

__all__ = [
    "LongspanConfig",
    "LongspanFeatureExtractor",
    "LongspanForAudioClassification",
    "LongspanForAudioFrameClassification",
    "LongspanForCausalLM",
    "LongspanForImageClassification",
    "LongspanForMaskedLM",
    "LongspanForQuestionAnswering",
    "LongspanForSeq2SeqLM",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanImageProcessor",
    "LongspanModel",
]
'''


def write(folder: Path) -> None:
    """Write it to a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILE, MODELING)


def is_named_in(auto_map: Mapping[str, str] | None) -> bool:
    """Say whether a configuration's `auto_map` names it in the model's own folder, not in a repository of the Hub."""
    return any(name.startswith(f"{FILE.removesuffix('.py')}.") for name in (auto_map or {}).values())
