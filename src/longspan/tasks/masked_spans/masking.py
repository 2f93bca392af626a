"""Masked spans of a window, and the model's source and target: `SpanMasking`."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.data.batches.encoding import mapped_once
from longspan.data.text.masks import around_masks
from longspan.data.text.tokenization import token_facts
from longspan.data.text.tokenizer_training import MASK

_SENTINEL = "<extra_id_{}>"


class SpanMasking:
    """Masks spans of tokens (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, "span corruption").

    Of n tokens, round(share · n) are masked, in round(masked / mean) spans. All ways to cut the masked tokens into
    spans are equally likely, and so are all places of the spans with a token between each two.

    - The source is the window with the sentinel i in place of span i, and the end token.
    - The target is the sentinel i followed by the tokens of span i, for each span, and the end token.

    Unlike in T5, whose windows begin with a token that is not masked and end with a span, spans may be anywhere. The
    target has no sentinel after its last span, where the end token is.

    Args:
        sentinels: The tokens that stand for spans, in order.
        end: The end token.
        share: The share of the tokens that is masked.
        mean: The mean number of tokens of a span.
    """

    def __init__(self, sentinels: Sequence[int], end: int, share: float, mean: float) -> None:
        self.sentinels = np.asarray(sentinels, dtype=np.int32)
        self.end, self.share, self.mean = end, share, mean

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and the target of a window of at least one token, both int32.

        Args:
            ids: `(n,)` the tokens of the window.
            rng: Generator of random numbers.
        """
        masked, count = spans_of(len(ids), self.share, self.mean)
        inside = _cut(masked, count, rng)
        # Between two spans is a token at least; before the first and after the last there may be none.
        outside = _cut(len(ids) - masked + 2, count + 1, rng)
        outside[[0, -1]] -= 1
        starts = np.cumsum(outside[:-1]) + np.cumsum(inside) - inside
        in_span = np.zeros(len(ids) + 1, dtype=np.int64)
        np.add.at(in_span, starts, 1)
        np.add.at(in_span, starts + inside, -1)
        hidden = np.cumsum(in_span[:-1]).astype(bool)
        sentinels = self.sentinels[:count]
        kept = np.cumsum(outside[:-1])
        source = np.insert(ids[~hidden], kept, sentinels)
        target = np.insert(ids[hidden], np.cumsum(inside) - inside, sentinels)
        return np.append(source, self.end).astype(np.int32), np.append(target, self.end).astype(np.int32)


def spans_of(tokens: int, share: float, mean: float) -> tuple[int, int]:
    """Numbers of masked tokens of a window and of their spans; at least one in one."""
    masked = max(1, round(share * tokens))
    # Between two spans is at least one token.
    return masked, max(1, min(round(masked / mean), masked, tokens - masked + 1))


def add_sentinels(tokenizer: PreTrainedTokenizerBase, count: int) -> None:
    """Add special tokens that stand for spans, as many as are missing, after all other tokens."""
    names = [_SENTINEL.format(number) for number in range(count)]
    known = tokenizer.get_vocab()
    missing = [name for name in names if name not in known]
    if missing:
        tokenizer.add_special_tokens({"extra_special_tokens": missing}, replace_extra_special_tokens=False)


def sentinels_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that stand for spans, in order."""
    known = tokenizer.get_vocab()
    found: list[int] = []
    while (name := _SENTINEL.format(len(found))) in known:
        found.append(known[name])
    return found


def _cut(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Cut a number into parts of at least 1, all ways equally likely, `(parts,)`."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def with_sentinels(tokenizer: PreTrainedTokenizerBase, text: str, sentinels: Sequence[int]) -> list[int]:
    """Return the source of a text with masks, at most as many as there are sentinels."""
    first, *others = (ids.tolist() for ids in around_masks(tokenizer, text))
    parts = chain.from_iterable([one, *ids] for one, ids in zip(sentinels, others, strict=False))
    return [*first, *parts, tokenizer.eos_token_id]


def filled(
    tokenizer: PreTrainedTokenizerBase, text: str, target: Sequence[int], sentinels: Sequence[int]
) -> tuple[str, list[str]]:
    """Return a text with its masks filled in, and what each is filled with; "" for what the target lacks."""
    first, *parts = text.split(MASK)
    numbers = {token: number for number, token in enumerate(sentinels[: len(parts)])}
    found: list[list[int]] = [[] for _ in parts]
    current: list[int] = []
    for token in target:
        if token in numbers:
            # Of a sentinel that is written twice, the first span counts.
            current = found[numbers[token]] if not found[numbers[token]] else []
        else:
            current.append(token)
    spans = [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in found]
    return first + "".join(f"{span}{part}" for span, part in zip(spans, parts, strict=True)), spans


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
        documents: Result of `longspan.data.text.long_documents.tokenize_documents`.
        scored: `(d,)` how many tokens of each are read, from its beginning.
        size: Tokens of a window; the last one of a document may be shorter.
        masking: Masking.
        tokenizer: Tokenizer of the tokens.
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

    masks = [masking.share, masking.mean, masking.sentinels.tolist()]
    facts = [*token_facts(tokenizer), size, *masks, scored.tolist(), "spans"]
    arrow = documents.select_columns(["input_ids"]).with_format("arrow")
    return mapped_once(arrow, cut, _FEATURES, facts, description, 16, with_indices=True).with_format(None)


class DrawnSpans(DrawnExamples[dict[str, Any]]):
    """Windows with masks that are drawn again in each epoch: pairs of a source and a target.

    Args:
        windows: Result of `windows`.
        masking: Masking.
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
