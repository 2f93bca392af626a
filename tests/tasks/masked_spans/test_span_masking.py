"""Spans that are masked: how many, how long, where, and what a model reads and writes instead."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset, Value

from longspan.data.config import DataConfig
from longspan.data.text.long_documents import tokenize_documents
from longspan.data.text.pairs import pair_tokenizer
from longspan.data.text.tokenization import token_ids
from longspan.tasks.masked_spans.masking import (
    DrawnSpans,
    SpanMasking,
    add_sentinels,
    filled,
    sentinels_of,
    spans_of,
    windows,
    with_sentinels,
)

END, FIRST = 999, 1000
SENTINELS = list(range(FIRST, FIRST + 200))


def put_back(source: list[int], target: list[int]) -> list[int]:
    """Return the window of a source and a target, read as the docstring of `SpanMasking` says."""
    assert (source[-1], target[-1]) == (END, END)
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token >= FIRST:
            spans[current := token] = []
        else:
            spans[current].append(token)
    assert list(spans) == [token for token in source if token >= FIRST] == SENTINELS[: len(spans)]
    assert all(spans.values())
    found = []
    for token in source[:-1]:
        found += spans[token] if token >= FIRST else [token]
    return found


@pytest.mark.parametrize(("share", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.9, 5.0), (0.99, 1.0)])
def test_windows_can_be_put_back_together(share: float, mean: float) -> None:
    rng = np.random.default_rng(0)
    masking = SpanMasking(SENTINELS, END, share, mean)
    for length in [*range(1, 40), 100, 150]:
        ids = rng.integers(END, size=length).astype(np.int32)
        source, target = masking(ids, rng)
        assert (source.dtype, target.dtype) == (np.int32, np.int32)
        masked, spans = spans_of(length, share, mean)
        # The end of each.
        assert (len(source), len(target)) == (length - masked + spans + 1, masked + spans + 1)
        assert put_back(source.tolist(), target.tolist()) == ids.tolist()
        # Between two spans is a token.
        assert not any(one >= FIRST and other >= FIRST for one, other in pairwise(source.tolist()))


def test_share_and_mean_length_are_those_asked_for() -> None:
    assert spans_of(512, 0.15, 3.0) == (77, 26)
    assert spans_of(1, 0.15, 3.0) == (1, 1)
    # 9 of 10 tokens in spans of one would need more than the token that is left between them.
    assert spans_of(10, 0.9, 1.0) == (9, 2)


def test_all_ways_are_equally_likely() -> None:
    # Three of six tokens in two spans: 2 ways to cut them, and 6 places, as one of the other three is between the two.
    masking, rng, draws = SpanMasking(SENTINELS, END, 0.5, 1.5), np.random.default_rng(0), 3000
    ids = np.arange(6, dtype=np.int32)
    found = Counter(tuple(masking(ids, rng)[0].tolist()) for _ in range(draws))
    assert len(found) == 12
    # Binomial counts with p = 1/12 have a standard deviation of 15.
    assert max(abs(count - draws / 12) for count in found.values()) < 5 * 15


def test_documents_in_windows() -> None:
    texts = ["one two three " * 30, "a", "the end of it"]
    tokenizer = pair_tokenizer(DataConfig(vocab_size=300), texts, "windows")
    add_sentinels(tokenizer, 4)
    data = Dataset.from_dict({"text": texts, "where": list("abc")}).cast_column("text", Value("large_string"))
    documents = tokenize_documents(data, tokenizer, DataConfig(vocab_size=300), "test")
    masking = SpanMasking(sentinels_of(tokenizer), tokenizer.eos_token_id, 0.3, 2.0)
    lengths = np.array(documents["length"][:])
    made = windows(documents, lengths, 16, masking, tokenizer, "test")
    ids = [each.tolist() for each in token_ids(tokenizer, texts)]
    wanted = [one[start : start + 16] for one in ids for start in range(0, len(one), 16)]
    assert made["window"][:] == wanted
    assert made["length"][:] == [len(one) for one in made["input_ids"][:]]
    assert made["target_length"][:] == [len(one) for one in made["labels"][:]]
    # A part of each document, from its beginning.
    cut = windows(documents, np.minimum(lengths, 5), 16, masking, tokenizer, "test")
    assert cut["window"][:] == [one[:5] for one in ids]
    drawn = DrawnSpans(made, masking, 3)
    same, again, other = (drawn[index]["input_ids"].tolist() for index in ((1, 0), (1, 0), (2, 0)))
    assert same == again
    assert same != other
    assert DrawnSpans(made, masking, 4)[1, 0]["input_ids"].tolist() != same
    for row in range(len(made)):
        pair = drawn[0, row]
        assert (len(pair["input_ids"]), len(pair["labels"])) == (made["length"][row], made["target_length"][row])


def test_masks_of_a_text_become_sentinels_and_are_filled_in() -> None:
    text = "a <mask> film is<mask>"
    tokenizer = pair_tokenizer(DataConfig(vocab_size=300), ["a good film is a good film"] * 9, "filling")
    size = len(tokenizer)
    add_sentinels(tokenizer, 3)
    add_sentinels(tokenizer, 2)
    sentinels = sentinels_of(tokenizer)
    assert sentinels == [size, size + 1, size + 2]
    # Spelled out in a text, they are ordinary.
    assert not {*sentinels} & {*token_ids(tokenizer, ["<extra_id_0>"])[0].tolist()}
    parts = [ids.tolist() for ids in token_ids(tokenizer, ["a", " film is", ""])]
    source = with_sentinels(tokenizer, text, sentinels)
    assert source == [*parts[0], sentinels[0], *parts[1], sentinels[1], tokenizer.eos_token_id]
    good, bad = (ids.tolist() for ids in token_ids(tokenizer, [" good", " a"]))
    assert filled(tokenizer, text, [sentinels[0], *good, sentinels[1], *bad], sentinels) == (
        "a good film isa",
        ["good", "a"],
    )
    # What no mask asks for is left out, and of two spans for one mask the first counts.
    target = [*bad, sentinels[1], *good, sentinels[1], *bad, sentinels[2], *bad]
    assert filled(tokenizer, text, target, sentinels)[1] == ["", "good"]
