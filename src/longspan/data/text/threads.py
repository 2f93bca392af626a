"""The Rust tokenizers on several cores: threads of our own, as those of the library do not survive a fork."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tokenizers import Tokenizer

from longspan.machine.environment import cores

_PIECE = 20_000
"""Characters that a thread encodes at a time: enough to keep it busy, few enough to give all threads work."""


@contextmanager
def no_rust_threads() -> Iterator[None]:
    """Keep the Rust library from starting threads, after which it warns or hangs in forked processes."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def backend_ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return all ids of each text, from threads."""

    def work(piece: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(piece, add_special_tokens=False)]

    with no_rust_threads(), ThreadPoolExecutor(cores()) as threads:
        return [ids for piece in threads.map(work, _pieces(texts)) for ids in piece]


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
