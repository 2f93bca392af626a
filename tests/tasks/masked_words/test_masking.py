"""What is masked, and what the model sees in its place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.tasks.masked_words.masking import LONGEST, Masking

TEXT = "the unbelievable story of an unbelievably forgettable evening in the theatre, told at length. " * 4
WORDS = build_tokenizer(DataConfig(tokens="words", vocab_size=40), [TEXT], mask=True)
PIECES = build_tokenizer(DataConfig(tokens="bpe", vocab_size=280), [TEXT], mask=True)
IDS = np.array(PIECES(TEXT).input_ids)
ONE = np.zeros(len(IDS), dtype=np.int64)


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed or 0)


@pytest.mark.parametrize("kind", ["tokens", "words", "spans"])
def test_of_those_chosen_four_fifths_are_masked_and_a_tenth_each_replaced_and_kept(kind):
    masking, many = Masking(WORDS, kind, 0.2), np.tile(np.arange(3, 15), 4000)
    inputs, labels = masking(many, np.zeros_like(many), rng())
    chosen = labels != -100
    # As many as wanted, but for the end of the last word or span.
    assert abs(chosen.sum() - 0.2 * len(many)) <= 1
    assert np.array_equal(labels[chosen], many[chosen])
    assert np.array_equal(inputs[~chosen], many[~chosen])
    seen, right = inputs[chosen], many[chosen]
    # Random tokens are sometimes the right ones.
    shares = [np.mean(seen == WORDS.mask_token_id), np.mean((seen != WORDS.mask_token_id) & (seen != right))]
    # Four standard errors; of spans, a fate is that of 3.8 words, and some are longer.
    margin = 4 * (0.16 / chosen.sum()) ** 0.5 * (6**0.5 if kind == "spans" else 1)
    assert shares == pytest.approx([0.8, 0.1], abs=margin)
    assert not np.isin(seen[seen != WORDS.mask_token_id], WORDS.all_special_ids).any()


def test_words_are_masked_with_all_their_tokens():
    masking = Masking(PIECES, "words", 0.3)
    starts = np.array([token.startswith("Ġ") for token in PIECES.convert_ids_to_tokens(IDS.tolist())])
    starts[0] = True
    words = np.cumsum(starts)
    sizes = np.bincount(words)
    assert sizes.max() > 2
    counts = []
    for seed in range(50):
        _, labels = masking(IDS, ONE, rng(seed))
        found = np.bincount(words[labels != -100], minlength=len(sizes))
        assert np.all((found == 0) | (found == sizes))
        counts.append((labels != -100).sum())
    # No longer words rather than shorter ones: about as many tokens as asked for.
    assert np.mean(counts) == pytest.approx(0.3 * len(IDS), rel=0.05)
    _, labels = Masking(PIECES, "tokens", 0.3)(IDS, ONE, rng())
    found = np.bincount(words[labels != -100], minlength=len(sizes))
    assert np.any((found > 0) & (found < sizes))


def test_spans_are_geometric_and_share_their_fate():
    masking, many = Masking(WORDS, "spans", 0.02), np.tile(np.arange(3, 15), 20_000)
    inputs, labels = masking(many, np.zeros_like(many), rng())
    chosen = labels != -100
    edges = np.flatnonzero(np.diff(chosen.astype(int), prepend=0, append=0))
    begins, lengths = edges[::2], np.diff(edges)[::2]
    # Spans that meet are seen as one, here one in forty.
    assert lengths[lengths <= LONGEST].mean() == pytest.approx(3.8, rel=0.05)
    assert np.mean(lengths == 1) == pytest.approx(0.2 / (1 - 0.8**LONGEST), rel=0.1)
    assert np.mean(lengths > LONGEST) < 0.02
    masked = inputs == WORDS.mask_token_id
    mixed = [0 < masked[begin : begin + length].sum() < length for begin, length in zip(begins, lengths, strict=True)]
    assert np.mean(mixed) < 0.03


def test_spans_end_where_documents_end():
    documents = np.repeat(np.arange(400), 3)
    ids = np.tile(np.arange(3, 6), 400)
    _, labels = Masking(WORDS, "spans", 0.1)(ids, documents, rng())
    found = np.bincount(documents[labels != -100], minlength=400)
    assert found.max() <= 3
    # Were documents not there, most spans that begin on the last word would reach into the next one.
    last = (labels[2::3] != -100) & (labels[1::3] == -100)
    following = np.roll(labels[0::3] != -100, -1)
    assert following[last].mean() < 0.4


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, len(WORDS) - 1), max_size=30),
    st.sampled_from(["tokens", "words", "spans"]),
    st.floats(0.01, 0.99),
)
def test_special_tokens_are_never_predicted(tokens, kind, share):
    ids = np.array(tokens, dtype=np.int32)
    inputs, labels = Masking(WORDS, kind, share)(ids, np.zeros_like(ids), rng())
    special = np.isin(ids, WORDS.all_special_ids)
    assert np.all(labels[special] == -100)
    assert np.array_equal(inputs[special], ids[special])
    assert (labels != -100).any() == bool((~special).any())
