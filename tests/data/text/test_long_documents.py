"""Long documents have the tokens they would have whole, in little memory, and are counted as they stand."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase

from longspan.data.columns.kinds import Text
from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.sources.loading import load
from longspan.data.text import long_documents as module
from longspan.data.text import tokenization
from longspan.data.text.long_documents import pieces, summary, token_arrays, tokenize_documents
from longspan.data.text.tokenization import build_tokenizer, encode

ALPHABET = "ab'st \n\r\t\u3000\x85é😀漢.12<"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def text_of(seed: int, length: int) -> str:
    return "".join(random.Random(seed).choices(ALPHABET, k=length))


def make(kind: str, **settings: Any) -> tuple[PreTrainedTokenizerBase, DataConfig]:
    config = DataConfig(tokens=kind, vocab_size=300, **settings)
    return build_tokenizer(config, [text_of(0, 5000), *["the cat's hat\n\n it is"] * 9], end=True), config


MADE = {(kind, lowercase): make(kind, lowercase=lowercase) for kind in TRAINED_TOKENS for lowercase in (False, True)}


def rows(texts: list[str]) -> Dataset:
    features = datasets.Features({"text": datasets.Value("large_string"), "where": datasets.Value("string")})

    def generate() -> Any:
        for number, text in enumerate(texts):
            yield {"text": text, "where": f"{number}.txt"}

    return Dataset.from_generator(generate, features=features)


@pytest.mark.parametrize(("kind", "lowercase"), MADE)
@given(text=st.text(alphabet=ALPHABET, max_size=300), size=st.integers(1, 40))
def test_pieces_have_the_tokens_of_the_whole(kind: str, lowercase: bool, text: str, size: int) -> None:
    tokenizer, config = MADE[kind, lowercase]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", size)
        cut = module._where_to_cut(config, tokenizer)
        found = list(module._pieces(memoryview(text.encode()), cut))
    assert "".join(found) == text
    assert [number for ids in encode(tokenizer, found, config) for number in ids] == encode(tokenizer, [text], config)[
        0
    ]


def test_pieces_are_small_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 100)
    lines = memoryview((("x" * 70 + "\n") * 40).encode())
    assert max(map(len, module._pieces(lines, "line"))) <= 100
    assert max(map(len, module._pieces(memoryview(b"x" * 999), "anywhere"))) <= 100
    # One line is one piece.
    assert list(map(len, module._pieces(memoryview(b"x" * 999), "line"))) == [999]
    assert list(map(len, module._pieces(lines, "nowhere"))) == [71 * 40]


@pytest.fixture
def gpt2(tmp_path: Path) -> str:
    """A pretrained tokenizer of the kind of GPT-2's."""
    build_tokenizer(DataConfig(tokens="bpe", vocab_size=300), [text_of(0, 999)], end=True).save_pretrained(
        tmp_path / "g"
    )
    return str(tmp_path / "g")


def test_pretrained_tokenizers_are_cut_only_where_that_is_known_to_be_exact(gpt2: str, tmp_path: Path) -> None:
    config = DataConfig(tokens=gpt2)
    tokenizer = build_tokenizer(config, [], end=True)
    assert module._where_to_cut(config, tokenizer) == "line"
    tokenizer.backend_tokenizer.normalizer = normalizers.Strip()
    assert module._where_to_cut(config, tokenizer) == "nowhere"
    tokenizer = build_tokenizer(config, [], end=True)
    tokenizer.add_tokens("two\nlines")
    assert module._where_to_cut(config, tokenizer) == "nowhere"
    ByT5Tokenizer().save_pretrained(tmp_path / "byt5")
    config = DataConfig(tokens=str(tmp_path / "byt5"))
    assert module._where_to_cut(config, build_tokenizer(config, [], end=True)) == "nowhere"


@pytest.mark.parametrize("kind", [*TRAINED_TOKENS, "gpt2", "byt5"])
def test_documents_of_any_size(kind: str, gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 50)
    monkeypatch.setattr(module, "_BLOCK", 300)
    monkeypatch.setattr(module, "_BATCH", 1000)
    texts = [text_of(number, size) for number, size in enumerate([900, 1, 40, 2000, 7, 100])]
    if kind == "byt5":
        ByT5Tokenizer().save_pretrained(tmp_path / "byt5")
    config = DataConfig(tokens={"gpt2": gpt2, "byt5": str(tmp_path / "byt5")}.get(kind, kind), vocab_size=280)
    dataset = rows(texts)
    tokenizer = build_tokenizer(config, pieces(dataset, config), end=True)
    found = tokenize_documents(dataset, tokenizer, config, "Tokenising")
    assert found.column_names == ["input_ids", "length", "unknown", "characters", "bytes", "where"]
    assert found.features["input_ids"].feature.dtype == "int32"
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert [ids.tolist() for ids in token_arrays(found)] == found["input_ids"][:] == expected
    assert found["length"][:] == list(map(len, expected))
    assert found["unknown"][:] == [ids.count(tokenizer.unk_token_id) for ids in expected]
    assert found["characters"][:] == list(map(len, texts))
    assert found["bytes"][:] == [len(text.encode()) for text in texts]
    assert found["where"][:] == [f"{number}.txt" for number in range(6)]
    assert summary(found) == {
        "documents": 6,
        "tokens": sum(map(len, expected)),
        "unknown": sum(found["unknown"][:]),
        "characters": sum(map(len, texts)),
        "bytes": sum(len(text.encode()) for text in texts),
        "longest": max(map(len, expected)),
    }
    selected = tokenize_documents(dataset.select([3, 0]), tokenizer, config, "Tokenising")
    assert [ids.tolist() for ids in token_arrays(selected)] == [expected[3], expected[0]]


@pytest.mark.parametrize("kind", ["characters", "words", "whitespace", "bpe"])
def test_what_is_learned_from_pieces_is_what_the_whole_teaches(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 50)
    config = DataConfig(tokens=kind, vocab_size=320)
    texts = [text_of(1, 3000) + "the cat's hat\n" * 9, text_of(2, 500)]
    apart = build_tokenizer(config, pieces(rows(texts), config), end=True)
    assert tokenization.tokenizer_hash(apart) == tokenization.tokenizer_hash(build_tokenizer(config, texts, end=True))


def test_tokens_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, config = MADE["bpe", False]
    dataset = rows([text_of(3, 100), text_of(4, 50)])
    first = tokenize_documents(dataset, tokenizer, config, "Tokenising")
    monkeypatch.setattr(module, "_encode", lambda *_: pytest.fail("encoded again"))
    assert tokenize_documents(dataset, tokenizer, config, "Other words")[:] == first[:]


@pytest.mark.slow
def test_memory_is_that_of_the_tokens(tmp_path: Path) -> None:
    """Four megabytes of bytes: their tokens need sixteen, twice while they are joined."""
    size = 1 << 22
    path = tmp_path / "a.txt"
    path.write_bytes(b"some words and\nmore " * (size // 20))
    config = DataConfig(path=str(path), tokens="bytes", validation_fraction=0.0)
    dataset = load(config, [Text("text", "text_column")]).splits["train"]
    tokenizer = build_tokenizer(config, [], end=True)
    tracemalloc.start()
    try:
        found = tokenize_documents(dataset, tokenizer, config, "Tokenising")
        assert tracemalloc.get_traced_memory()[1] < 3 * 4 * size + module._BLOCK * 2
    finally:
        tracemalloc.stop()
    (ids,) = token_arrays(found)
    assert len(ids) == size // 20 * 20
    assert not ids.flags.owndata
    assert np.unique(ids).size == len(set("some words and\nmore "))
