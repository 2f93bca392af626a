"""Tokens with their characters: the same ids as without, and all characters but those that tokens leave out."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.processor import Encoded
from longspan.data.text.offsets import over_marks, tokens_with_offsets
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, token_ids
from longspan.errors import UserError

TEXTS = [
    "The cat's paw, in Zürich: 3.5 km\naway… \U0001f600 end",
    "  Two  spaces,\ttabs\r\nand ÉCOLE İstanbul naïve 東京都 <pad> ",
    "",
    "x",
]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokens", TRAINED_TOKENS)
def test_tokens_stand_for_all_characters_but_spaces(tokens: str, lowercase: bool) -> None:
    config = replace(DataConfig(tokens=tokens, vocab_size=400), lowercase=lowercase)
    tokenizer = build_tokenizer(config, TEXTS, end=True)
    plain = token_ids(tokenizer, TEXTS)
    for text, wanted, (ids, offsets) in zip(TEXTS, plain, tokens_with_offsets(tokenizer, TEXTS), strict=True):
        np.testing.assert_array_equal(ids, wanted)
        assert offsets.shape == (len(ids), 2)
        assert (offsets[:, 0] <= offsets[:, 1]).all()
        assert (np.diff(offsets[:, 0]) >= 0).all()
        assert (np.diff(offsets[:, 1]) >= 0).all()
        left_out = set(range(len(text)))
        for start, end in offsets.tolist():
            left_out -= set(range(start, end))
        assert not "".join(text[at] for at in sorted(left_out)).strip(), tokens


class Reversed(TextProcessor):
    """Encodes in its own way, and says nothing else about its positions."""

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        return [Encoded({"input_ids": one.streams["input_ids"][::-1]}, 7) for one in super().encode(rows, data)]


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("tokens", TRAINED_TOKENS)
def test_a_text_read_once_is_what_it_is_read_twice(tokens: str, keep: str) -> None:
    data = DataConfig(tokens=tokens, vocab_size=400, max_length=9, keep=keep)
    processor = TextProcessor(build_tokenizer(data, TEXTS, end=True))
    for text in TEXTS:
        (encoded,) = processor.encode({"text": [text]}, data)
        once, places = processor.placed({"text": text}, data)
        np.testing.assert_array_equal(once.streams["input_ids"], encoded.streams["input_ids"])
        assert once.removed == encoded.removed
        np.testing.assert_array_equal(places.spans, processor.places({"text": text}, encoded, data).spans)
    palindrome = {"text": "x"}
    assert Reversed(processor.tokenizer).placed(palindrome, data)[0].removed == 7


def test_no_room_next_to_special_tokens_is_refused() -> None:
    data = DataConfig(tokens="bytes")
    processor = TextProcessor(build_tokenizer(data, TEXTS, end=True))
    backend = processor.tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 2)])
    with pytest.raises(UserError, match=r"data\.max_length must be at least 2"):
        processor.placed({"text": "x"}, replace(data, max_length=1))


@pytest.mark.parametrize("tokens", TRAINED_TOKENS)
def test_tokens_reach_over_marks_that_compose(tokens: str) -> None:
    """The same text, however its accents were typed, has the same tokens for the same characters."""
    if tokens == "bytes":
        return
    text = "Việt Nam, café Zürich; 한국어 각 q\u0303 x\nড\u09bc কো ắ"
    tokenizer = build_tokenizer(DataConfig(tokens=tokens, vocab_size=400), [text, *TEXTS])
    composed, apart = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    (ids, places), (other_ids, other_places) = tokens_with_offsets(tokenizer, [composed, apart])
    np.testing.assert_array_equal(ids, other_ids)
    for (start, end), (first, last) in zip(places.tolist(), other_places.tolist(), strict=True):
        assert unicodedata.normalize("NFC", apart[first:last]) == composed[start:end]


@pytest.mark.parametrize("tokens", ["words", "bpe", "pieces", "characters", "whitespace"])
def test_offsets_of_a_saved_tokenizer_reach_over_marks_too(tokens: str, tmp_path: Path) -> None:
    """transformers aligns a composed character to its letter; `over_marks` adds the rest, special tokens or not."""
    text = "Andr\u00e9 in Z\u00fcrich, Vi\u1ec7t Nam"
    build_tokenizer(DataConfig(tokens=tokens, vocab_size=400), [text, *TEXTS], end=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    apart = unicodedata.normalize("NFD", text)
    for special in (False, True):
        found, wanted = (
            tokenizer(one, return_offsets_mapping=True, add_special_tokens=special)["offset_mapping"]
            for one in (apart, text)
        )
        reached = over_marks(apart, np.array(found, np.int32))
        assert [unicodedata.normalize("NFC", apart[start:end]) for start, end in reached.tolist()] == [
            text[start:end] for start, end in wanted
        ]
