"""Tokens are learned from texts read once, decode as promised, are cut at the right end and computed only once."""

import json
import os
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, Value
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerBase

from longspan.data.batches import encoding
from longspan.data.batches.encoding import encoded, truncation_table
from longspan.data.columns.kept import Carried, class_number
from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.text import tokenization
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, encode
from longspan.errors import UserError

TEXTS = ["The cat sat on the mat.", "Das Boot, ein Film: großartig! 😀", "the the the <pad> <unk>"] * 5


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def build(kind: str, **settings: Any) -> PreTrainedTokenizerBase:
    return build_tokenizer(DataConfig(tokens=kind, vocab_size=300, **settings), iter(TEXTS))


BYTES = build("bytes")


@given(st.text(max_size=50))
def test_bytes_are_one_token_each_and_decode_exactly(text: str) -> None:
    (ids,) = encode(BYTES, [text], DataConfig(tokens="bytes"))
    assert len(ids) == len(text.encode())
    assert BYTES.decode(ids) == text


def test_bytes_have_fixed_ids() -> None:
    assert len(BYTES) == 258
    assert encode(BYTES, ["aé"], DataConfig()) == [BYTES.convert_tokens_to_ids(["a", "Ã", "©"])]
    assert BYTES.get_vocab() == build("bytes").get_vocab()


@pytest.mark.parametrize("kind", TRAINED_TOKENS)
def test_special_tokens_and_saving(tmp_path: Path, kind: str) -> None:
    tokenizer = build(kind)
    assert tokenizer.eos_token is None
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    config = DataConfig(tokens=kind)
    assert encode(loaded, TEXTS, config) == encode(tokenizer, TEXTS, config) == [tokenizer(t).input_ids for t in TEXTS]
    assert len(loaded) == len(tokenizer)
    assert tokenization.tokenizer_hash(loaded) == tokenization.tokenizer_hash(tokenizer)
    # A document that speaks of padding is no padding.
    assert 0 not in encode(loaded, ["<pad>"], config)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(loaded("word " * 5000).input_ids) >= 5000
    padded = loaded(["a b", "a"], padding=True, return_tensors="pt")
    assert padded["input_ids"].shape == padded["attention_mask"].shape


@pytest.mark.parametrize("kind", TRAINED_TOKENS)
def test_a_token_for_the_end_of_documents(tmp_path: Path, kind: str) -> None:
    config = DataConfig(tokens=kind, vocab_size=300)
    texts = [*TEXTS, "the end <|endoftext|> is near", "<|endoftext|>"]
    tokenizer = build_tokenizer(config, iter(texts), end=True)
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for found in (tokenizer, loaded):
        assert (found.pad_token_id, found.unk_token_id, found.eos_token_id, found.bos_token_id) == (0, 1, 2, 2)
        assert found.eos_token == found.bos_token == "<|endoftext|>"
    found_ids = encode(loaded, texts, config)
    assert found_ids == encode(tokenizer, texts, config) == [loaded(text).input_ids for text in texts]
    # A document that speaks of padding or of its end does not end there.
    assert not {0, 2} & {number for ids in found_ids for number in ids}
    if kind not in ("words", "whitespace", "pieces"):
        assert [loaded.decode(ids) for ids in found_ids] == texts
        assert loaded.decode([2, *found_ids[0], 2], skip_special_tokens=True) == texts[0]
    plain = build_tokenizer(config, iter(texts))
    assert plain.get_vocab().keys() | {"<|endoftext|>"} >= tokenizer.get_vocab().keys()
    assert len(tokenizer) - len(plain) in (0, 1)


CHARACTERS = build_tokenizer(
    DataConfig(tokens="characters"), ["ab\n \r\t\u3000ç\u0327😀漢ḑ<|endoftext|>", "\u0327"], end=True
)


@given(st.text(alphabet="ab\n \r\t\u3000ç\u0327😀漢<|endoftext>", max_size=50))
def test_characters_are_one_token_each_and_decode_exactly(text: str) -> None:
    (ids,) = encode(CHARACTERS, [text], DataConfig(tokens="characters"))
    composed = unicodedata.normalize("NFC", text)
    assert len(ids) == len(composed)
    assert CHARACTERS.decode(ids) == composed


def test_characters_are_numbered_by_frequency() -> None:
    config = DataConfig(tokens="characters", vocab_size=6)
    tokenizer = build_tokenizer(config, ["bb", "abc", "cdb"], end=True)
    assert tokenizer.get_vocab() == {"<pad>": 0, "<unk>": 1, "<|endoftext|>": 2, "b": 3, "c": 4, "a": 5}
    assert encode(tokenizer, ["abed", "A"], config) == [[5, 3, 1, 1], [1]]
    lower = build_tokenizer(DataConfig(tokens="characters", lowercase=True), ["ΑΣ", "İ"])
    assert encode(lower, ["ΑΣ", "İ"], config) == encode(lower, ["ασ", "i̇"], config)
    assert 1 not in encode(lower, ["ΑΣ İ".replace(" ", "")], config)[0]


def test_whitespace_keeps_words_as_they_stand_and_line_breaks() -> None:
    config = DataConfig(tokens="whitespace")
    texts = [" = Title = \n \n the @-@ <unk> , the\u3000end.\n", "a<pad>\n"]
    tokenizer = build_tokenizer(config, texts, end=True)
    found = [tokenizer.convert_ids_to_tokens(ids) for ids in encode(tokenizer, texts, config)]
    assert found[0] == ["=", "Title", "=", "\n", "\n", "the", "@-@", "<unk>", ",", "the", "end.", "\n"]
    # What would be taken for a special token falls apart; only the unknown token means itself.
    assert found[1] == ["a", "<", "pad>", "\n"]
    words = ["\n", "=", "the", ",", "<", "@-@", "Title", "a", "end.", "pad>"]
    assert tokenizer.convert_ids_to_tokens(list(range(13))) == ["<pad>", "<unk>", "<|endoftext|>", *words]


@pytest.mark.parametrize(("kind", "smallest"), [("bpe", 259), ("characters", 4), ("whitespace", 4), ("words", 4)])
def test_a_vocabulary_that_special_tokens_fill(kind: str, smallest: int) -> None:
    with pytest.raises(UserError, match=f"at least {smallest} for tokens='{kind}', got {smallest - 1}"):
        build_tokenizer(DataConfig(tokens=kind, vocab_size=smallest - 1), TEXTS, end=True)
    assert len(build_tokenizer(DataConfig(tokens=kind, vocab_size=smallest), TEXTS, end=True)) == smallest


def test_words_split_off_punctuation_and_keep_the_most_frequent() -> None:
    config = DataConfig(tokens="words", vocab_size=6, lowercase=True)
    tokenizer = build_tokenizer(config, ["The film, the FILM; the end.", "Film!", "one, two, three, the"])
    assert len(tokenizer) == 6
    assert tokenizer.convert_ids_to_tokens(encode(tokenizer, ["The film, unseen"], config)[0]) == [
        "the",
        "film",
        ",",
        "<unk>",
    ]


def test_case_is_kept_unless_asked() -> None:
    assert "The" in build("words").get_vocab()
    assert "The" not in build("words", lowercase=True).get_vocab()


def test_bpe_decodes_exactly_and_is_learned_the_same_again() -> None:
    tokenizer, again = build("bpe"), build("bpe")
    assert len(tokenizer) == 300
    assert tokenizer.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()
    text = "unseen: ñandú 漢字\n\tthe cat"
    assert tokenizer.decode(encode(tokenizer, [text], DataConfig())[0]) == text


@pytest.mark.parametrize("kind", ["characters", "words", "whitespace", "bpe"])
def test_what_was_learned_is_kept_for_the_same_texts(kind: str) -> None:
    config = DataConfig(tokens=kind, vocab_size=300)
    first = build_tokenizer(config, iter(TEXTS), cache_key="one")
    remaining = iter(TEXTS)
    again = build_tokenizer(config, remaining, cache_key="one")
    assert len(list(remaining)) == len(TEXTS)
    assert tokenization.tokenizer_hash(first) == tokenization.tokenizer_hash(again)
    other = build_tokenizer(config, remaining, cache_key="one", end=True)
    assert list(remaining) == []
    assert tokenization.tokenizer_hash(first) != tokenization.tokenizer_hash(other)
    smaller = build_tokenizer(DataConfig(tokens=kind, vocab_size=265), iter(TEXTS), cache_key="one")
    assert len(smaller) == min(265, len(first))


def word_ids(texts: list[str], **settings: Any) -> list[list[str]]:
    config = DataConfig(tokens="words", **settings)
    tokenizer = build_tokenizer(config, texts)
    return [tokenizer.convert_ids_to_tokens(ids) for ids in encode(tokenizer, texts, config)]


def test_either_end_is_kept() -> None:
    texts = ["a b c d e", "a b", ""]
    assert word_ids(texts) == [["a", "b", "c", "d", "e"], ["a", "b"], []]
    assert word_ids(texts, max_length=3) == [["a", "b", "c"], ["a", "b"], []]
    assert word_ids(texts, max_length=3, keep="last") == [["c", "d", "e"], ["a", "b"], []]


@pytest.fixture
def byt5(tmp_path: Path) -> str:
    """A tokenizer written in Python, which ends each document with a special token."""
    ByT5Tokenizer(model_max_length=4).save_pretrained(tmp_path / "byt5")
    return str(tmp_path / "byt5")


@pytest.fixture
def bert(tmp_path: Path) -> str:
    """A tokenizer that puts special tokens on either side, and whose file asks for truncation and padding."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = build("words")
    backend = tokenizer.backend_tokenizer
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    ids = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    tokenizer.model_max_length = 2
    tokenizer.save_pretrained(tmp_path / "bert")
    return str(tmp_path / "bert")


def test_special_tokens_stay_around_the_part_that_is_kept(bert: str, byt5: str) -> None:
    config = DataConfig(tokens=bert, max_length=4, keep="last")
    tokenizer = build_tokenizer(config, [])
    found = [tokenizer.convert_ids_to_tokens(ids) for ids in encode(tokenizer, ["the cat sat on", "the"], config)]
    assert found == [["[CLS]", "sat", "on", "[SEP]"], ["[CLS]", "the", "[SEP]"]]
    config = DataConfig(tokens=byt5, max_length=4)
    tokenizer = build_tokenizer(config, [])
    assert tokenizer.convert_ids_to_tokens(encode(tokenizer, ["abcdef"], config)[0]) == ["a", "b", "c", "</s>"]
    with pytest.raises(
        UserError,
        match=r"max_length must be at least 2, as the tokenizer adds 1 special tokens to each document, got 1",
    ):
        encode(tokenizer, ["a"], DataConfig(tokens=byt5, max_length=1))


def test_limits_of_the_pretrained_model_are_forgotten(bert: str, tmp_path: Path, caplog: Any) -> None:
    tokenizer = build_tokenizer(DataConfig(tokens=bert), [])
    assert len(encode(tokenizer, ["the " * 50], DataConfig(tokens=bert))[0]) == 52
    tokenizer.save_pretrained(tmp_path / "again")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "again")("the " * 50).input_ids) == 52
    assert not caplog.records


def test_a_padding_token_is_added(tmp_path: Path) -> None:
    tokenizer = build("bpe")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "gpt")
    assert build_tokenizer(DataConfig(tokens=str(tmp_path / "gpt")), []).pad_token_id is not None


def test_pretrained_tokenizers_end_documents_with_their_own_token_or_ours(tmp_path: Path, byt5: str) -> None:
    own = build_tokenizer(DataConfig(tokens=byt5), [], end=True)
    assert own.eos_token == "</s>"
    build("bpe").save_pretrained(tmp_path / "none")
    ours = build_tokenizer(DataConfig(tokens=str(tmp_path / "none")), [], end=True)
    assert (ours.eos_token, ours.bos_token) == ("<|endoftext|>", "<|endoftext|>")
    assert ours.eos_token_id == 300
    gpt2 = build_tokenizer(DataConfig(tokens="bpe", vocab_size=300), TEXTS, end=True)
    gpt2.split_special_tokens = False
    gpt2.init_kwargs["split_special_tokens"] = False
    gpt2.save_pretrained(tmp_path / "gpt2")
    config = DataConfig(tokens=str(tmp_path / "gpt2"))
    assert build_tokenizer(config, [])("a<|endoftext|>").input_ids[-1] == 2
    loaded = build_tokenizer(config, [], end=True)
    assert 2 not in encode(loaded, ["a<|endoftext|>"], config)[0]
    loaded.save_pretrained(tmp_path / "run")
    assert 2 not in AutoTokenizer.from_pretrained(tmp_path / "run")("a<|endoftext|>").input_ids


def test_no_such_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **_: Any) -> None:
        raise OSError(f"{name} is not a local folder.\nMore.")

    monkeypatch.setattr(tokenization.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(UserError, match=r"or a pretrained tokenizer, got 'word', .* did you mean 'words'\?"):
        build_tokenizer(DataConfig(tokens="word"), [])
    with pytest.raises(UserError, match=r"data.tokens: there is no file or folder '/no/such'; check the path"):
        build_tokenizer(DataConfig(tokens="/no/such"), [])


def documents(texts: list[str]) -> Dataset:
    def rows() -> Any:
        for number, text in enumerate(texts):
            where = f"a.csv, row {number + 1}"
            yield {"text": text, "other": text[::-1], "label": "ab"[number % 2], "where": where}

    return Dataset.from_generator(rows)


def labels(a: int = 0, **others: int) -> dict[str, Carried]:
    return {"labels": class_number("label", {"a": a, **others})}


def test_tokenize() -> None:
    config = DataConfig(tokens="words", max_length=3)
    dataset = documents(["a b c d e", "a b", "c d e"])
    tokenizer = build_tokenizer(config, dataset["text"])
    found = encoded(dataset, TextProcessor(tokenizer), config, "Tokenising", keep=labels(b=1))
    assert found.column_names == ["input_ids", "length", "removed", "labels"]
    assert found.features["input_ids"].feature.dtype == "int32"
    assert found["length"][:] == [3, 2, 3]
    assert found["removed"][:] == [2, 0, 0]
    assert found["labels"][:] == [0, 1, 0]
    assert truncation_table(found) == {
        "documents": 3,
        "tokens": 10,
        "cut_documents": 1,
        "removed_tokens": 2,
        "median_length": 3.0,
        "longest": 5,
    }
    assert "labels" not in encoded(dataset, TextProcessor(tokenizer), config, "Tokenising").column_names
    with pytest.raises(UserError, match=r"a.csv, row 2: expected a label that the model knows, got 'b'"):
        encoded(dataset, TextProcessor(tokenizer), config, "Tokenising", keep=labels(c=1))


def test_columns_go_along_as_they_are_or_converted() -> None:
    dataset = documents(["a b", "c"])
    tokenizer = build_tokenizer(DataConfig(tokens="words"), dataset["text"])
    keep = {
        "plain": Carried("other"),
        "place": Carried("other", Value("string"), lambda value, where: f"{value} from {where}"),
    }
    found = encoded(dataset, TextProcessor(tokenizer), DataConfig(tokens="words"), "Tokenising", keep=keep)
    assert found.column_names == ["input_ids", "length", "removed", "plain", "place"]
    assert found["plain"][:] == ["b a", "c"]
    assert found["place"][:] == ["b a from a.csv, row 1", "c from a.csv, row 2"]


@given(
    first=st.integers(1, 9), second=st.integers(1, 9), room=st.integers(2, 12), kind=st.sampled_from(["bert", "plain"])
)
def test_pairs_are_as_the_tokenizer_makes_them(first: int, second: int, room: int, kind: str) -> None:
    tokenizer = PAIRED[kind]
    added = tokenizer.num_special_tokens_to_add(pair=True)
    one, other = " ".join("abcdefghi"[:first]), " ".join("jklmnopqr"[:second])
    config = DataConfig(tokens="words", max_length=room + added)
    (ids,) = encode(tokenizer, [one], config, pairs=[other])
    assert ids == tokenizer(one, other, truncation="longest_first", max_length=room + added).input_ids
    whole = DataConfig(tokens="words")
    assert encode(tokenizer, [one], whole, pairs=[other]) == [tokenizer(one, other).input_ids]


def pair_tokenizers() -> dict[str, PreTrainedTokenizerBase]:
    from tokenizers.processors import TemplateProcessing

    text = " ".join("abcdefghijklmnopqr")
    made = {kind: build_tokenizer(DataConfig(tokens="words"), [text]) for kind in ("bert", "plain")}
    backend = made["bert"].backend_tokenizer
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return made


PAIRED = pair_tokenizers()


def test_the_last_tokens_of_both_texts_of_a_pair_are_kept() -> None:
    tokenizer = PAIRED["bert"]
    config = DataConfig(tokens="words", max_length=8, keep="last")
    found = encode(tokenizer, ["a b c d e f", "a"], config, pairs=["j k", "j k l m n o"])
    assert [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in found] == [
        "[CLS] d e f [SEP] j k [SEP]",
        "[CLS] a [SEP] l m n o [SEP]",
    ]
    with pytest.raises(
        UserError, match="max_length must be at least 5, as the tokenizer adds 3 special tokens to each document, got 4"
    ):
        encode(tokenizer, ["a"], DataConfig(tokens="words", max_length=4), pairs=["j"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", ""),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 3}'),
        ("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": 3}'),
    ],
)
def test_damaged_tokenizers_are_one_sentence(tmp_path: Path, name: str, content: str | bytes) -> None:
    build("words").save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=r"saved', which could not be loaded as one \(.+\); check the na") as error:
        build_tokenizer(DataConfig(tokens=str(tmp_path / "saved")), [])
    assert "\n" not in str(error.value)


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    settings = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with pytest.raises(UserError, match=r"could not be loaded as one .*; check the name, or the folder"):
        build_tokenizer(DataConfig(tokens=str(folder)), [])
    assert not (tmp_path / "ran").exists()


def test_tokenize_computes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(tokens="words", max_length=3)
    dataset = documents(TEXTS)
    tokenizer = build_tokenizer(config, dataset["text"])
    numbers = labels(b=1)
    first = encoded(dataset, TextProcessor(tokenizer), config, "Tokenising", keep=numbers)
    calls = []
    original = tokenization.encode_counted

    def counted(*args: Any) -> Any:
        calls.append(1)
        return original(*args)

    monkeypatch.setattr("longspan.data.text.processor.encode_counted", counted)
    again = encoded(dataset, TextProcessor(build_tokenizer(config, TEXTS)), config, "Other words", keep=numbers)
    assert (again[:], calls) == (first[:], [])
    plain = {"labels": Carried("label")}
    for other, keep, data in (
        (DataConfig(tokens="words", max_length=4), numbers, dataset),
        (DataConfig(tokens="words", max_length=3, keep="last"), numbers, dataset),
        (config, labels(1, b=0), dataset),
        (config, plain, dataset),
        (config, numbers, documents(TEXTS[:7])),
    ):
        encoded(data, TextProcessor(tokenizer), other, "Tokenising", keep=keep)
        assert calls == [1]
        calls.clear()


def test_python_tokenizers_run_in_processes(byt5: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_SLOW_ROWS", 4)
    monkeypatch.setattr(encoding, "cores", lambda: 2)
    config = DataConfig(tokens=byt5, max_length=20)
    tokenizer = build_tokenizer(config, [])
    found = encoded(documents(TEXTS), TextProcessor(tokenizer), config, "Tokenising", keep=labels(b=1))
    assert found["input_ids"][:] == encode(tokenizer, TEXTS, config)


@pytest.mark.slow
def test_nothing_is_left_of_the_threads() -> None:
    """A forked process neither warns nor hangs, and the environment is as before."""
    script = (
        "import os; before = dict(os.environ)\n"
        "from longspan.data.config import DataConfig\n"
        "from longspan.data.text.tokenization import build_tokenizer, encode\n"
        "config = DataConfig(tokens='bpe', vocab_size=300)\n"
        "texts = ['some text to learn from'] * 5000\n"
        "tokenizer = build_tokenizer(config, texts); encode(tokenizer, texts, config)\n"
        "assert 'TOKENIZERS_PARALLELISM' not in set(os.environ) - set(before)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    tokenizer(texts); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "forked" not in result.stderr
