"""BPE-dropout: every segmentation has the probability that the published algorithm gives it."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from longspan.data.config import DataConfig
from longspan.data.text.bpe_dropout import BpeDropout
from longspan.data.text.tokenization import build_tokenizer, token_ids
from longspan.errors import UserError

TEXTS = [
    "the cat sat on the mat, the hat and the rat",
    "Größe und Maße: die  Straße",
    "that thatched heath",
    "don't",
] * 4
MERGES = [("t", "h"), ("th", "e"), ("a", "t"), ("h", "a"), ("th", "at"), ("e", "th")]


@pytest.fixture(scope="module")
def learned() -> PreTrainedTokenizerBase:
    return build_tokenizer(DataConfig(tokens="bpe", vocab_size=330), iter(TEXTS))


def by_hand() -> PreTrainedTokenizerBase:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, *("".join(pair) for pair in MERGES)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def chances(word: tuple[str, ...], rate: float) -> Counter[tuple[str, ...]]:
    """Return the probability of each segmentation, by all ways in which algorithm 1 of the paper may go on."""
    possible = [place for place, pair in enumerate(pairwise(word)) if pair in MERGES]
    found: Counter[tuple[str, ...]] = Counter()
    for removed in product((False, True), repeat=len(possible)):
        chance = np.prod([rate if one else 1 - rate for one in removed])
        left = [place for place, one in zip(possible, removed, strict=True) if not one]
        if not left:
            found[word] += chance
            continue
        place = min(left, key=lambda place: (MERGES.index((word[place], word[place + 1])), place))
        rest = (*word[:place], word[place] + word[place + 1], *word[place + 2 :])
        for segmentation, other in chances(rest, rate).items():
            found[segmentation] += chance * other
    return found


def test_each_segmentation_has_its_probability() -> None:
    tokenizer, rate, draws = by_hand(), 0.3, 4000
    drop = BpeDropout(tokenizer, rate)
    expected = chances(tuple("thatheth"), rate)
    assert sum(expected.values()) == pytest.approx(1)
    random = np.random.default_rng(0)
    # Several words for each draw, as runs of kept merges go on from one word to the next.
    drawn = Counter(tuple(tokenizer.convert_ids_to_tokens(drop(text, random))) for text in ["thatheth"] * draws)
    assert drawn.keys() <= expected.keys()
    for segmentation, chance in expected.items():
        # Five standard deviations of a share of so many draws.
        assert drawn[segmentation] / draws == pytest.approx(chance, abs=5 * np.sqrt(chance / draws))


def test_without_dropout_it_is_byte_pair_encoding(learned: PreTrainedTokenizerBase) -> None:
    drop = BpeDropout(learned, 1e-12)
    texts = [*TEXTS, "  the\t\u2003 hat's Größe 漢字 été e\u0301 12\n\n<pad>!?", ""]
    random = np.random.default_rng(0)
    assert [drop(text, random) for text in texts] == [ids.tolist() for ids in token_ids(learned, texts)]


def test_draws_decode_to_the_text_and_depend_on_the_generator_alone(learned: PreTrainedTokenizerBase) -> None:
    drop = BpeDropout(learned, 0.4)
    drawn = [[drop(text, np.random.default_rng((seed, row))) for row, text in enumerate(TEXTS)] for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert learned.batch_decode(drawn[0]) == learned.batch_decode(drawn[1]) == TEXTS
    ordinary = token_ids(learned, TEXTS)
    assert sum(map(len, drawn[0])) > sum(map(len, ordinary))


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_tokens_without_merges_are_refused(kind: str) -> None:
    tokenizer = build_tokenizer(DataConfig(tokens=kind, vocab_size=300), iter(TEXTS))
    with pytest.raises(UserError, match="expected a tokenizer of byte-level BPE"):
        BpeDropout(tokenizer, 0.1)
