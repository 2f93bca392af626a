"""Words among tokens: where they begin, what each becomes, and how raw text is split into words like given ones."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.data.text.words import CHARACTERS, WordEncoder, splitting, word_starts
from longspan.errors import UserError

WORDS = [
    "Do",
    "n't",
    "stop",
    "it",
    "'s",
    "U.S.",
    "10:30",
    "3,000",
    "...",
    "(",
    "al",
    "-",
    "Ani",
    ")",
    "na\u00efve",
    ".",
] * 3


def learned(kind: str, words: list[str] = WORDS) -> PreTrainedTokenizerBase:
    config = DataConfig(tokens=kind, vocab_size=300)
    return build_tokenizer(config, words, splitting=splitting(words))


@pytest.mark.parametrize("kind", ["pieces", "words", "characters", "bytes", "bpe", "whitespace"])
def test_each_word_begins_with_a_token_that_begins_words(kind: str) -> None:
    tokenizer = learned(kind)
    begins = word_starts(tokenizer)
    found = WordEncoder.of(tokenizer)([*WORDS, "unseen-\u4e2d", "\x00"])
    assert len(found) == len(WORDS) + 2
    for ids in found:
        assert ids
        assert begins[ids[0]] or kind == "characters"
        if kind in ("pieces", "bytes"):
            assert not begins[ids[1:]].any()


def test_raw_text_is_split_as_the_words_of_training_are() -> None:
    tokenizer = learned("pieces")
    text = "Don't stop; it's U.S. (al-Ani): 3,000 at 10:30..."
    encoded = tokenizer(text, return_offsets_mapping=True)
    begins = word_starts(tokenizer)
    starts = [number for number, token in enumerate(encoded["input_ids"]) if begins[token]]
    offsets = encoded["offset_mapping"]
    ends = [offsets[number - 1][1] for number in [*starts[1:], len(offsets)]]
    found = [text[offsets[start][0] : end] for start, end in zip(starts, ends, strict=True)]
    wanted = [
        "Do",
        "n't",
        "stop",
        ";",
        "it",
        "'s",
        "U.S.",
        "(",
        "al",
        "-",
        "Ani",
        ")",
        ":",
        "3,000",
        "at",
        "10:30",
        "...",
    ]
    assert found == wanted
    # The same words, given as such, have the same tokens.
    assert [token for ids in WordEncoder.of(tokenizer)(wanted) for token in ids] == encoded["input_ids"]


def test_words_with_hyphens_in_training_stay_whole() -> None:
    tokenizer = learned("pieces", ["non-stop", "well-known", "rock", "'n'", "roll", "."])
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    assert [word.replace("\u0120", "") for word, _ in splitter.pre_tokenize_str("a well-made film.")] == [
        *("a", "well-made", "film", ".")
    ]


def test_text_of_single_characters_is_split_into_them() -> None:
    assert splitting(["\u79d1", "\u6280", "A"]) == CHARACTERS
    tokenizer = learned("characters", ["\u79d1", "\u6280", "A"])
    assert len(tokenizer("\u79d1 \u6280A")["input_ids"]) == 3


def test_word_pieces_go_on_with_a_mark() -> None:
    vocabulary = {token: number for number, token in enumerate(["[UNK]", "play", "##ing", "the", "#"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    np.testing.assert_array_equal(word_starts(tokenizer), [True, True, False, True, True])
    assert WordEncoder.of(tokenizer)(["playing", "the", "\u2620"]) == [[1, 2], [3], [0]]


def test_a_word_without_any_token_is_refused() -> None:
    backend = Tokenizer(models.BPE({"a": 0}, []))
    encoder = WordEncoder.of(PreTrainedTokenizerFast(tokenizer_object=backend))
    with pytest.raises(UserError, match="no unknown token"):
        encoder(["a", "b"])
