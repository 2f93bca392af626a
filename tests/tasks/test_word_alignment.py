"""Numbers of words of tokens, and links between words from weights between tokens."""

from itertools import groupby

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from longspan.data.config import DataConfig
from longspan.data.text.pairs import pair_tokenizer
from longspan.tasks.base.seq2seq.word_alignment import WordAligner, source_words, target_words

TEXTS = ["Der Hund, ein Großer!", "  die\u3000 漢字  sind\nschön ", "the 😀😀 dog's old", "a", ""]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return pair_tokenizer(DataConfig(vocab_size=290), TEXTS * 6, "aligned words")


def test_tokens_are_numbered_by_the_words_of_their_text(tokenizer: PreTrainedTokenizerBase) -> None:
    every = tokenizer(TEXTS)["input_ids"]
    found = source_words(tokenizer, TEXTS, list(map(len, every)))
    for text, ids, words in zip(TEXTS, every, found, strict=True):
        assert len(words) == len(ids)
        assert words[-1] == -1
        parts = [[ids[place] for place, _ in group] for _, group in groupby(enumerate(words), lambda pair: pair[1])]
        spelled = [tokenizer.decode(part).strip() for part in parts]
        assert [part for part in spelled[:-1] if part] == text.split()
        # As a target, the same tokens have the same words; white space may belong to the word before it.
        again = target_words(tokenizer, ids[:-1])
        assert [word for word, own in zip(again, words, strict=False) if own >= 0] == [w for w in words if w >= 0]


def test_what_is_not_read_has_no_word(tokenizer: PreTrainedTokenizerBase) -> None:
    whole = source_words(tokenizer, TEXTS[:1], [len(tokenizer(TEXTS[0])["input_ids"])])[0]
    assert source_words(tokenizer, TEXTS[:1], [5]) == [[*whole[:4], -1]]
    # A text that begins in the middle of a character, with the end, which is no word.
    ids = tokenizer("漢,")["input_ids"]
    assert target_words(tokenizer, ids[1:]) == [0] * (len(ids) - 2) + [-1]


def test_words_are_linked_by_means_over_target_tokens_and_sums_over_source_tokens(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    ids = tokenizer("a the b")["input_ids"][:-1]
    words = target_words(tokenizer, ids)
    places = [words.index(word) for word in range(3)]
    # Two source words, the first of two tokens, and an end token that is read most.
    aligner = WordAligner(tokenizer, [[], [0, 0, 1, -1]])
    weights = torch.zeros(len(ids), 4)
    weights[:, 3] = 0.5
    weights[places[0], :3] = torch.tensor([0.2, 0.1, 0.25])
    weights[places[1], :3] = torch.tensor([0.1, 0.1, 0.3])
    weights[places[2], :3] = torch.tensor([0.0, 0.3, 0.2])
    links = aligner(1, ids, weights)
    assert [links[place] for place in places] == [0, 1, 0]
    assert aligner.pairs(ids, links) == [[0, 0], [1, 1], [0, 2]]
    assert aligner(0, ids, weights[:, :0]) == [-1] * len(ids)
    assert aligner.pairs(ids, [-1] * len(ids)) == []
