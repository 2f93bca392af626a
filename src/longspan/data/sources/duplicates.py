"""Rows that hold the same document, but for case, white space, the form of accents, characters that nobody sees and a
final full stop: `documents` numbers them.

Copies of a training document among those that a model is scored on make it look better than it is. So splits are drawn
by document (`longspan.data.sources.splitting`), and copies across given splits are counted.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Value

from longspan.data.columns.kinds import Column, Text
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.caching import cached_tables
from longspan.machine.printing import note

#: Bytes of a digest. Two of 10^9 different documents are taken for copies with a probability of about 10^-21.
_DIGEST = 16
#: Long texts are folded this many bytes at a time, so that memory does not grow with them.
_PIECE = 1 << 22
#: Rows that are looked at together, and from how many rows or bytes on digests are kept in the cache.
_AT_ONCE, _MANY, _LARGE = 100, 1000, 1 << 20
_SPACE = re.compile(rb"[ \n\t\r]")
_DIGESTS = "longspan digests"
#: Characters without width that neither shape letters nor join words: the zero-width space, the byte-order mark, the
#: word joiner, the soft hyphen and the marks of direction.
_UNSEEN = re.compile("[\u200b\ufeff\u2060\u00ad\u200e\u200f]")
#: Full stops, Chinese and Japanese ones among them, with the spaces before them.
_STOPS = ".\u3002\uff0e\uff61 "


def identity(columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose values make two rows hold the same document.

    They are the texts that keep rows together, if there are any, and otherwise all columns that identify documents.
    """
    together = [column for column in columns if isinstance(column, Text) and column.together]
    return [*together] or [column for column in columns if column.identifies]


def documents(splits: Mapping[str, Dataset], columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """Return a number for each row of each split, `(rows,)` int64: rows with the same number hold the same document.

    Numbers begin with 0 and are in the order in which documents first come, from split to split.
    """
    wanted = identity(columns)
    if not wanted:
        # Without inputs, nothing tells rows apart but their places.
        ends = np.cumsum([0, *map(len, splits.values())])
        return {split: np.arange(start, start + len(splits[split])) for split, start in zip(splits, ends, strict=False)}
    chunks = [chunk for rows in splits.values() for chunk in _digests(rows, wanted).chunks]
    found = pa.chunked_array(chunks, pa.binary()).combine_chunks().dictionary_encode().indices.to_numpy()
    ends = np.cumsum([len(rows) for rows in splits.values()])
    return dict(zip(splits, np.split(found.astype(np.int64), ends[:-1]), strict=True))


def count_duplicates(found: Mapping[str, np.ndarray]) -> dict[str, dict[str, int]]:
    """Count the rows of each split whose document an earlier row of it holds ("copies"), or a row of another split.

    The latter are counted under "in_train" and, in the test split, "in_validation".

    Args:
        found: Result of `documents`, by split, in the order "train", "validation", "test".

    Returns:
        The counts by split; empty if all are 0.
    """
    counts: dict[str, dict[str, int]] = {}
    for split, numbers in found.items():
        others = {f"in_{other}": int(np.isin(numbers, found[other]).sum()) for other in counts}
        counts[split] = {"copies": len(numbers) - len(np.unique(numbers)), **others}
    return counts if any(number for row in counts.values() for number in row.values()) else {}


def note_duplicates(
    counts: Mapping[str, Mapping[str, int]],
    sizes: Mapping[str, int],
    drawn: Collection[str],
    rows: str = "rows",
    same: str = "the same document, ignoring case, white space and a final full stop",
) -> None:
    """Say how many rows are copies within splits that were drawn, and how many are in several of the given splits.

    Args:
        counts: Result of `count_duplicates`.
        sizes: Number of rows of each split.
        drawn: The splits that were drawn from the training rows.
        rows: Name of rows, in the plural.
        same: Content that copies have in common.
    """
    if not counts:
        return
    pool = ["train", *drawn] if drawn else []
    if copies := sum(counts[split]["copies"] for split in pool):
        verb = "repeats" if copies == 1 else "repeat"
        total = sum(sizes[split] for split in pool)
        note(f"{copies:,} of {total:,} {rows} {verb} an earlier one ({same}); copies stay in one split")
    for split, row in counts.items():
        for other, told in (("train", "training"), ("validation", "validation")):
            if shared := row.get(f"in_{other}"):
                verb = "is" if shared == 1 else "are"
                what = f"{shared:,} of {sizes[split]:,} {rows} of the {split} split"
                note(f"{what} {verb} in the {told} split as well ({same})")


def folded(text: str) -> str:
    """Return a text in lower case, composed (NFC), with a single space for each stretch of white space.

    It lacks invisible characters and full stops at its end. Case is folded as Unicode defines it for texts that are
    canonically equivalent.
    """
    found = _folded(text)
    return found.rstrip(_STOPS) or found


def _folded(text: str) -> str:
    """`folded` without what happens at the end, for a part of a text."""
    if not text.isascii():
        text = _UNSEEN.sub("", text)
    if not text.isascii():
        text = unicodedata.normalize("NFD", text)
    text = text.casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def digests(rows: Dataset, columns: Sequence[Column]) -> set[bytes]:
    """Digests of the documents of rows."""
    return set(_digests(rows, identity(columns)).to_pylist())


def digest(values: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """Digest of the document in the values of a row, as `digests` has it."""
    parts = [_digest(_content(column.content(values[column.name]))) for column in identity(columns)]
    return parts[0] if len(parts) == 1 else _digest(b"".join(parts))


def _digests(rows: Dataset, columns: Sequence[Column]) -> pa.ChunkedArray:
    """Return the digest of each row, from the cache where they take long to compute."""
    features = Features({"digest": Value("binary")})

    def tables() -> Iterator[pa.Table]:
        batches = rows.select_columns([column.name for column in columns]).with_format("arrow").iter(_AT_ONCE)
        for batch in batches:
            parts = [_column_digests(batch.column(column.name), column) for column in columns]
            joined = parts[0] if len(parts) == 1 else [_digest(b"".join(row)) for row in zip(*parts, strict=True)]
            yield pa.table({"digest": pa.array(joined, pa.binary())})

    if len(rows) < _MANY and rows.data.nbytes < _LARGE:
        return pa.concat_tables([pa.table({"digest": pa.array([], pa.binary())}), *tables()]).column("digest")
    facts = [_DIGESTS, fingerprint(rows), [column.facts for column in columns]]
    return cached_tables(tables, features, facts, "longspan.data").data.column("digest")


def _column_digests(values: pa.ChunkedArray, column: Column) -> list[bytes]:
    texts = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if texts and type(column).content is Column.content:
        # Without a Python object for each, as one may be of gigabytes.
        return [_digest(*_pieces(value.as_buffer())) for value in values]
    return [_digest(_content(column.content(value))) for value in values.to_pylist()]


def _digest(*parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        found.update(part)
    return found.digest()


def _content(value: Any) -> bytes:
    """Return a value as bytes that its copies have in common."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return folded(value).encode()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return folded(" ".join(value)).encode()
    return json.dumps(value, sort_keys=True, default=str).encode()


def _pieces(text: Any) -> Iterable[bytes]:
    """Yield a long text folded, piece by piece; pieces end at white space, so that copies have the same ones joined."""
    if text is None or len(text) <= _PIECE:
        yield b"" if text is None else folded(str(text, "utf-8")).encode()
        return
    view, start, between = memoryview(text).cast("B"), 0, b""
    length = len(view)
    while length and view[length - 1] in b" \n\t\r.":
        length -= 1
    while start < length:
        end = start + _PIECE
        while end < length and not (found := _SPACE.search(view[end : end + _PIECE])):
            end += _PIECE
        end = min(end + found.start(), length) if end < length and found else length
        piece = _folded(str(view[start:end], "utf-8"))
        if end == length:
            piece = piece.rstrip(_STOPS)
        if piece:
            yield between + piece.encode()
            between = b" "
        start = end
