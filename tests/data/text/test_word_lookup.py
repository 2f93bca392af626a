"""Looking up words gives what the Rust library makes of the whole text, for every text."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase

from longspan.data.config import DataConfig
from longspan.data.text import tokenization
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.threads import backend_ids
from longspan.data.text.tokenization import backend_of, build_tokenizer, token_ids
from longspan.data.text.word_lookup import keeps_offsets, lookup_for

TEXT = (
    "It's the café's DON'T: naïve été Ελληνικά ΟΔΥΣΣΕΥΣ 你好，世界 1234 x==y\n\n    def f(self):\n\treturn 'x'\r\n" * 3
)


def learned(**settings: object) -> PreTrainedTokenizerBase:
    return build_tokenizer(DataConfig(vocab_size=300, **settings), [TEXT])  # type: ignore[arg-type]


PLAIN, LOWER = learned(), learned(lowercase=True)
WORDS, LOWER_WORDS = learned(tokens="words"), learned(tokens="words", lowercase=True)
KINDS = pytest.mark.parametrize(
    "tokenizer",
    [PLAIN, LOWER, WORDS, LOWER_WORDS],
    ids=["byte pairs", "byte pairs in lower case", "words", "words in lower case"],
)
# What words are made of, where they end, and what changes when it is lowered.
alphabet = st.one_of(
    st.sampled_from(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u200b\u3000'sStTreRE09aZß.<|>_ΣσİK"),
    st.characters(exclude_categories=["Cs"]),
)


@KINDS
@given(texts=st.lists(st.one_of(st.text(alphabet, max_size=40), st.just(TEXT)), max_size=4))
def test_words_have_the_tokens_of_the_whole(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    backend = backend_of(tokenizer)
    lookup = lookup_for(backend)
    assert lookup is not None
    lowercase = tokenizer in (LOWER, LOWER_WORDS)
    for _ in range(2):
        found = lookup(texts, lowercase, lambda words: backend_ids(backend, words))
        assert [ids.tolist() for ids in found] == backend_ids(backend, texts)


@KINDS
@given(texts=st.lists(st.one_of(st.text(alphabet, max_size=40), st.just(TEXT)), max_size=4))
def test_tokens_of_words_have_the_characters_of_the_whole(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    for _ in range(2):
        for text, (ids, offsets) in zip(texts, tokens_with_offsets(tokenizer, texts), strict=True):
            expected = backend_of(tokenizer).encode(text, add_special_tokens=False)
            assert ids.tolist() == expected.ids
            assert list(map(tuple, offsets.tolist())) == expected.offsets


def test_a_backend_that_cuts_off_spaces_reads_whole_texts() -> None:
    """RoBERTa's post-processor leaves the space before a word out of its token, but not at the start of a text."""
    cutting = learned()
    backend = cutting.backend_tokenizer
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    assert not keeps_offsets(backend)
    assert keeps_offsets(backend_of(PLAIN))
    ((ids, offsets),) = tokens_with_offsets(cutting, [" x == y"])
    expected = backend.encode(" x == y", add_special_tokens=False)
    assert (ids.tolist(), list(map(tuple, offsets.tolist()))) == (expected.ids, expected.offsets)


def test_every_character_splits_words_as_in_the_library() -> None:
    """BERT's words: each character between two letters, alone and in a text that is not ASCII."""
    backend = backend_of(WORDS)
    texts = [f"{before}{chr(number)}b" for number in range(0x3100) for before in ("a", "é")]
    lookup = lookup_for(backend)
    assert lookup is not None
    found = lookup(texts, False, lambda words: backend_ids(backend, words))
    assert [ids.tolist() for ids in found] == backend_ids(backend, texts)


def test_no_word_begins_but_where_white_space_does() -> None:
    """Every character between two letters: those that the library splits at before, and no others, are white space."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from longspan.data.text.word_lookup import _PARTS

    space = set()
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc"):
            # A run of white space leaves its last character to what follows.
            whole = [end for _, (_, end) in splitter.pre_tokenize_str(f"!{character}{character}!")]
            if whole[0] == 1:
                space.add(character)
            assert (_PARTS.findall(f"!{character}!")[0] == "!") == (whole[0] == 1), hex(number)
    assert {" ", "\n", "\u3000", "\x85"} <= space
    assert "\x1c" not in space


def test_many_words_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.data.text.word_lookup._MOST_WORDS", 3)
    backend = backend_of(PLAIN)
    lookup = lookup_for(backend)
    assert lookup is not None
    for text in ("one two three four five", "six", "one two three"):
        (found,) = lookup([text], False, lambda words: backend_ids(backend, words))
        assert found.tolist() == backend_ids(backend, [text])[0]
        assert len(lookup._ids) <= 5


def test_only_words_that_stand_alone_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({"tokens": "characters"}, {"tokens": "bytes"}):
        assert lookup_for(backend_of(learned(**settings))) is None
    added = learned()
    added.backend_tokenizer.add_tokens([AddedToken("café's", special=False)])
    assert lookup_for(backend_of(added)) is None
    special = learned()
    special.split_special_tokens = False
    assert lookup_for(backend_of(special)) is None
    # However many cores there are.
    expected = [ids.tolist() for ids in token_ids(PLAIN, [TEXT, "", "<pad>"])]
    for cores in (1, 64):
        monkeypatch.setattr(tokenization, "cores", lambda cores=cores: cores)
        assert [ids.tolist() for ids in token_ids(PLAIN, [TEXT, "", "<pad>"])] == expected


def test_byte_level_bpe_is_learned_from_what_is_read() -> None:
    """Beyond a multiple of `max_length` nothing is read, and nothing is learned; other kinds learn from all."""
    text = "aaaa " * 4 + "zzzz " * 50
    config = DataConfig(vocab_size=270, max_length=1)
    assert "zz" not in build_tokenizer(config, [text]).get_vocab()
    last = DataConfig(vocab_size=270, max_length=1, keep="last")
    assert "zz" in build_tokenizer(last, [text]).get_vocab()
    assert "aa" not in build_tokenizer(last, [text]).get_vocab()
    assert {"aa", "zz"} <= build_tokenizer(DataConfig(vocab_size=270), [text]).get_vocab().keys()
    words = DataConfig(tokens="words", vocab_size=270, max_length=1)
    assert "zzzz" in build_tokenizer(words, [text]).get_vocab()
