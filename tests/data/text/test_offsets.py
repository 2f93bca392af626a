"""Tokens with their characters: the same ids as without, and all characters but those that tokens leave out."""

from dataclasses import replace

import numpy as np
import pytest

from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.tokenization import build_tokenizer, token_ids

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
