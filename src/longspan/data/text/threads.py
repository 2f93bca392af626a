"""The Rust tokenizers on several cores: threads of our own, as those of the library do not survive a fork."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tokenizers import Tokenizer

from longspan.machine.limits import cores

_PIECE = 20_000
"""Characters that a thread encodes at a time: enough to keep it busy, few enough to give all threads work."""


_VARIABLE = "TOKENIZERS_PARALLELISM"


class _Users:
    """Number of threads that rely on the variable, and its value before the first of them."""

    lock = threading.Lock()
    count = 0
    before: str | None = None


@contextmanager
def no_rust_threads() -> Iterator[None]:
    """Keep the Rust library from starting threads, after which it warns or hangs in forked processes."""
    with _Users.lock:
        if not _Users.count:
            _Users.before = os.environ.get(_VARIABLE)
            os.environ[_VARIABLE] = "false"
        _Users.count += 1
    try:
        yield
    finally:
        with _Users.lock:
            _Users.count -= 1
            if not _Users.count and _Users.before is None:
                del os.environ[_VARIABLE]
            elif not _Users.count and _Users.before is not None:
                os.environ[_VARIABLE] = _Users.before


def backend_ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return all ids of each text, from threads."""

    def work(piece: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(piece, add_special_tokens=False)]

    pieces = list(_pieces(texts))
    with no_rust_threads():
        if len(pieces) <= 1:
            # Starting threads takes longer than a short text.
            return work(pieces[0]) if pieces else []
        with ThreadPoolExecutor(cores()) as threads:
            return [ids for piece in threads.map(work, pieces) for ids in piece]


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
