"""Documents in windows of a number of tokens, with spans that are masked: `windows` and `DrawnSpans`."""

from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.data.text.tokenization import map_once
from longspan.tasks.masked_spans.masking import SpanMasking

#: The seed of masks that do not change.
_FIXED = 0

_TOKENS = List(Value("int32"))
_FEATURES = Features(
    {
        "window": _TOKENS,
        "input_ids": _TOKENS,
        "labels": _TOKENS,
        "length": Value("int32"),
        "target_length": Value("int32"),
    }
)


def windows(
    documents: Dataset,
    scored: np.ndarray,
    size: int,
    masking: SpanMasking,
    tokenizer: PreTrainedTokenizerBase,
    description: str,
) -> Dataset:
    """Return the windows of documents in order, with the same masks each time.

    Args:
        documents: What `longspan.data.text.long_documents.tokenize_documents` returns.
        scored: `(d,)` how many tokens of each are read, from its beginning.
        size: Tokens of a window; the last one of a document may be shorter.
        masking: What is masked.
        tokenizer: What made the tokens.
        description: The label of the progress bar.

    Returns:
        `window`, the tokens, `input_ids` and `labels`, the source and the target, and their lengths, `length` and
        `target_length`.
    """

    def cut(batch: pa.Table, numbers: list[int]) -> pa.Table:
        columns: dict[str, list[Any]] = {name: [] for name in _FEATURES}
        for document, number in zip(batch["input_ids"], numbers, strict=True):
            ids = document.values.to_numpy()[: scored[number]]
            for start in range(0, len(ids), size):
                window = ids[start : start + size]
                source, target = masking(window, np.random.default_rng((_FIXED, number, start)))
                found = (window, source, target, len(source), len(target))
                for column, value in zip(columns.values(), found, strict=True):
                    column.append(value)
        return pa.table(columns, schema=_FEATURES.arrow_schema)

    facts = [size, masking.share, masking.mean, masking.sentinels.tolist(), scored.tolist(), "spans"]
    arrow = documents.select_columns(["input_ids"]).with_format("arrow")
    made = map_once(arrow, cut, _FEATURES, facts, tokenizer, description, 16, with_indices=True)
    return made.with_format(None)


class DrawnSpans(DrawnExamples[dict[str, Any]]):
    """Windows with masks that are drawn again in each epoch: pairs of a source and a target.

    Args:
        windows: What `windows` returns.
        masking: What is masked.
        seed: Seed of the masks.
    """

    def __init__(self, windows: Dataset, masking: SpanMasking, seed: int) -> None:
        super().__init__(seed)
        self.windows = windows.select_columns(["window"]).with_format("numpy")
        self.masking = masking

    def __len__(self) -> int:
        return len(self.windows)

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        source, target = self.masking(self.windows[index[1]]["window"], random)
        return {"input_ids": source, "labels": target}
