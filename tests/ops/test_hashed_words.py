"""Features of words in NumPy and in PyTorch: the same hashes, bit for bit, and nothing for no words."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from longspan.models.parts.words import Torch
from longspan.models.wide.word_features import kinds_of_characters, lower_cases
from longspan.ops.words import LETTERS, Numpy, code_points, feature_rows, spelling_rows, word_features

CHARACTERS = [*map(chr, range(33, 127)), *"éßΩЖ中文नが٠\U0001f600"]


def drawn(words: int) -> tuple[list[list[int]], list[int]]:
    """Code points of words of any length, some of them empty, and how many words each sentence has."""
    rng = random.Random(words)
    spelled = [[ord(rng.choice(CHARACTERS)) for _ in range(rng.choice([0, 1, 2, 4, 9, 130]))] for _ in range(words)]
    by_row: list[int] = []
    while sum(by_row) < words:
        by_row.append(min(rng.choice([1, 2, 5, 13, 40]), words - sum(by_row)))
    return spelled, by_row


@pytest.mark.parametrize("words", [0, 1, 300])
@pytest.mark.parametrize("given", [False, True])
def test_hashes_of_both_are_equal(words: int, given: bool) -> None:
    spelled, by_row = drawn(words)
    features = np.arange(words) % 4 if given else None
    codes = np.array([code for word in spelled for code in word], np.int64)
    sizes, rows = np.array([len(word) for word in spelled], np.int64), np.array(by_row, np.int64)
    lower, kinds = lower_cases().numpy(), kinds_of_characters().numpy()
    found = word_features(codes, sizes, rows, features, lower, kinds, Numpy)
    tensors = [torch.from_numpy(each) for each in (codes, sizes, rows, lower, kinds)]
    more = None if features is None else torch.from_numpy(features)
    expected = word_features(tensors[0], tensors[1], tensors[2], more, tensors[3], tensors[4], Torch)
    assert found.dtype == np.int64
    assert (found == expected.numpy()).all()
    assert found.shape == (words, 57 if given else 45)


@pytest.mark.parametrize("tokens", [0, 1, 400])
def test_rows_and_code_points_of_both_are_equal(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    spelled = rng.integers(0, 256, (tokens, LETTERS)).astype(np.uint8)
    spelled *= np.arange(LETTERS) < rng.integers(0, LETTERS, (tokens, 1))
    word = np.cumsum(rng.random(tokens) < 0.6)
    word = word - word[:1].sum()
    words = int(word[-1]) + 1 if tokens else 0
    by_row = np.array([words // 3, 0, words - words // 3])
    features = rng.integers(0, 4, words)
    there = spelled > 0
    own = word[Numpy.owners(there.sum(1))]
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "rows": (lambda xp, a, b, c: spelling_rows(a, b, c, 2, 997, xp), (spelled, word, by_row)),
        "features": (lambda xp, a, b: feature_rows(a, b, 2, 997, xp), (features, by_row)),
        "codes": (lambda xp, a, b: code_points(a, b, words, xp)[0], (spelled[there], own)),
        "sizes": (lambda xp, a, b: code_points(a, b, words, xp)[1], (spelled[there], own)),
    }
    for name, (call, arrays) in cases.items():
        found, expected = call(Numpy, *arrays), call(Torch, *map(torch.from_numpy, arrays))
        assert found.shape == tuple(expected.shape), name
        assert (found == expected.numpy()).all(), name
