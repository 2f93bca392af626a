"""The order of the gallery, and its outputs without progress bars, which a page would show line by line."""

from pathlib import Path
from typing import Any

from tqdm import tqdm

#: Scripts in the order of their index; others follow.
ORDER = [
    *("classify_folder", "dataframe_errors", "class_weights", "report", "long_documents", "label_words", "regression"),
    *("question_answering", "evidence", "recommendation", "nodes", "language_model", "pretraining"),
    *("compare", "grid_search", "cost", "replace_attention", "own_mixer", "own_task"),
    *("streaming", "stream_predictions", "export_onnx"),
]

_create = tqdm.__init__


class InOrder:
    """The key by which sphinx-gallery sorts scripts."""

    def __init__(self, folder: str) -> None:
        self.places = {f"plot_{name}.py": place for place, name in enumerate(ORDER)}

    def __call__(self, script: str) -> tuple[int, str]:
        name = Path(script).name
        return self.places.get(name, len(ORDER)), name


def _create_hidden(bar: Any, *given: Any, **options: Any) -> None:
    _create(bar, *given, **(options | {"disable": True}))


def hide_bars(gallery: dict[str, Any], script: str) -> None:
    """Hide the bars of the process that runs a script of the gallery."""
    tqdm.__init__ = _create_hidden  # type: ignore[method-assign,assignment]
