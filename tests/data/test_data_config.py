"""Settings that contradict each other or themselves are refused with a sentence that says what to do."""

from typing import Any

import pytest

from longspan.data.config import DataConfig
from longspan.errors import UserError


def test_defaults_are_valid() -> None:
    assert DataConfig().tokens == "bpe"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "a", "train": "b"}, "set only one"),
        ({"tokens": ""}, "data.tokens must be a name"),
        ({"validation_fraction": 1.0}, "at least 0 and below 1, got 1.0"),
        ({"test_fraction": -0.1}, "at least 0 and below 1, got -0.1"),
        (
            {"validation_fraction": 0.5, "test_fraction": 0.5},
            "add up to less than 1, got 1, which leaves nothing to train on",
        ),
        ({"max_length": -1}, "data.max_length must be at least 0, got -1"),
        ({"files_per_class": -5}, "data.files_per_class must be at least 0"),
        ({"keep": "middle"}, "there is no data.keep 'middle'; known names are first, last"),
        ({"classes": 1}, "data.classes must be at least 2"),
        ({"vocab_size": 257}, "at least 258 for tokens='bpe', got 257"),
        ({"tokens": "words", "vocab_size": 2}, "at least 3 for tokens='words'"),
        ({"tokens": "some/model", "lowercase": True}, "set data.lowercase=false"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataConfig(**settings)
