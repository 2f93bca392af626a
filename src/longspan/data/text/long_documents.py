"""Tokenising long documents a piece at a time, so that even a book needs no more memory than its tokens.

A document may only be cut where this does not change its tokens. For bytes that is anywhere. For characters, which an
accent after them may change, for words and for byte-level BPE it is before a line break that does not follow white
space. Words end there. So do all alternatives of the pattern with which GPT-2's byte-level BPE first splits text
(Radford et al. 2019). Its only lookahead, `\\s+(?!\\S)`, concerns the white space that follows. Other pretrained
tokenizers get documents uncut.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from tokenizers import normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.encoding import mapped_once
from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.text.tokenization import token_facts, token_ids

_PIECE = 1 << 16
"""Approximate number of bytes in a piece."""

_BLOCK = 1 << 22
"""Approximate number of characters held as text at a time."""

_ROWS, _BATCH = 128, 1 << 27
"""Maximum number of documents whose tokens are held at a time, and of their bytes unless one alone has more."""

_FEATURES = {
    "input_ids": List(Value("int32")),
    "length": Value("int64"),
    "unknown": Value("int64"),
    "characters": Value("int64"),
    "bytes": Value("int64"),
    "where": Value("string"),
}


def pieces(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """Yield the documents in pieces, for learning a tokenizer of the kind `config.tokens`."""
    for batch in dataset.with_format("arrow").iter(_ROWS):
        for text in batch["text"]:
            yield from _pieces(memoryview(text.as_buffer()), _where_to_cut(config, None))


def tokenize_documents(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, config: DataConfig, description: str
) -> Dataset:
    """Tokenise documents of any length on all cores, and only once: the result is cached.

    Args:
        dataset: Columns text and where, as from `longspan.data.sources.loading.load`.
        tokenizer: The tokenizer.
        config: The settings, for the kind of tokenizer.
        description: The label of the progress bar.

    Returns:
        Columns `input_ids` (int32 list, without special tokens), `length` (tokens), `unknown` (how many of them
        are the unknown token), `characters` and `bytes` (of the text in UTF-8) and `where`.
    """
    cut = _where_to_cut(config, tokenizer)
    unknown = -1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id

    def examples(batch: pa.Table) -> pa.Table:
        texts = [memoryview(text.as_buffer()) for text in batch["text"]]
        parts: list[np.ndarray] = [np.zeros(0, dtype=np.int32)]
        lengths, unknowns = [0] * len(texts), [0] * len(texts)
        for number, ids in _encode(tokenizer, texts, cut):
            parts.append(ids)
            lengths[number] += len(ids)
            unknowns[number] += int(np.count_nonzero(ids == unknown))
        values = np.concatenate(parts)
        columns: dict[str, Any] = {
            "input_ids": pa.ListArray.from_arrays(np.cumsum([0, *lengths]), values),
            "length": lengths,
            "unknown": unknowns,
            "characters": [_characters(text) for text in texts],
            "bytes": [len(text) for text in texts],
            "where": batch["where"],
        }
        return pa.table(columns)

    arrow = dataset.with_format("arrow")
    longest = max(pc.max(pc.binary_length(batch["text"])).as_py() for batch in arrow.iter(_ROWS))
    rows = max(1, min(_ROWS, _BATCH // max(1, longest)))
    facts, slow = [*token_facts(tokenizer), cut], not tokenizer.is_fast
    return mapped_once(arrow, examples, Features(_FEATURES), facts, description, rows, slow=slow).with_format(None)


def token_arrays(dataset: Dataset) -> list[np.ndarray]:
    """Return the column `input_ids` as one int32 array per document, `(n,)`, which stays in the data set's file."""
    found: list[np.ndarray] = []
    for chunk in dataset.with_format("arrow")[:]["input_ids"].chunks:
        # Not `flatten`: offsets count from the start of all values, even where the chunk is a part of a longer one.
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        found += [values[start:end] for start, end in pairwise(offsets.tolist())]
    return found


def summary(dataset: Dataset) -> dict[str, int]:
    """Summarise the result of `tokenize_documents`.

    Returns:
        `documents`, `tokens`, `unknown`, `characters`, `bytes` and `longest` (the longest document, in tokens).
    """
    totals = {name: int(sum(dataset[name][:])) for name in ("length", "unknown", "characters", "bytes")}
    return {
        "documents": len(dataset),
        "tokens": totals.pop("length"),
        **totals,
        "longest": max(dataset["length"][:], default=0),
    }


def _where_to_cut(config: DataConfig, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return where documents may be cut: "anywhere", before the end of a "line", or "nowhere"."""
    if config.tokens == "bytes":
        return "anywhere"
    if config.tokens in TRAINED_TOKENS:
        return "line"
    if tokenizer is None or not tokenizer.is_fast:
        return "nowhere"
    backend = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer
    # Added tokens may span line breaks, or include the white space around them.
    added = tokenizer.added_tokens_decoder.values()
    plain = not any(token.lstrip or token.rstrip or "\n" in token.content for token in added)
    like_gpt2 = isinstance(split, pre_tokenizers.ByteLevel) and split.use_regex and not split.add_prefix_space
    # A line break never joins what follows it.
    composed = backend.normalizer is None or isinstance(backend.normalizer, normalizers.NFC)
    return "line" if like_gpt2 and plain and composed else "nowhere"


def _pieces(text: memoryview, cut: str) -> Iterator[str]:
    start, reach = 0, len(text) if cut == "nowhere" else _PIECE
    while start < len(text):
        end = min(start + reach, len(text))
        # No piece begins inside a character.
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end += 1
        piece = str(text[start:end], "utf-8")
        if cut == "line" and end < len(text):
            piece = piece[: _line_end(piece)]
            if not piece:
                reach *= 2
                continue
            end = start + len(piece.encode())
        yield piece
        start, reach = end, _PIECE


def _line_end(text: str) -> int:
    """Return the position of the last line break that does not follow white space, else 0."""
    place = text.rfind("\n", 1)
    while place > 0 and text[place - 1].isspace():
        place = text.rfind("\n", 1, place)
    return max(place, 0)


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[memoryview], cut: str
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the ids of all pieces in order, int32, without special tokens, each with the number of its text."""
    numbers: list[int] = []
    block: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in _pieces(text, cut):
            numbers.append(number)
            block.append(piece)
            size += len(piece)
            if size >= _BLOCK:
                yield from zip(numbers, token_ids(tokenizer, block), strict=True)
                numbers, block, size = [], [], 0
    yield from zip(numbers, token_ids(tokenizer, block), strict=True)


def _characters(text: memoryview) -> int:
    """Count characters: all bytes of UTF-8 except continuation bytes."""
    values = np.frombuffer(text, dtype=np.uint8)
    return sum(int(np.count_nonzero(values[i : i + _BLOCK] & 0xC0 != 0x80)) for i in range(0, len(values), _BLOCK))
