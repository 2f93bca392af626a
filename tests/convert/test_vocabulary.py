"""Vocabularies that others pickled, read without running anything, and the tokenizers made of them."""

import collections
import os
import pickle
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longspan.convert.run_folder import build_tokenizer, load_vocabulary
from longspan.convert.weights import load_containers
from longspan.errors import UserError

WORDS = ["<eos>", "<unk>", "the", "cat", "purrs"]


def tokenizer_of(folder: Path, **settings: Any) -> PreTrainedTokenizerFast:
    """The tokenizer as it comes back from its files."""
    build_tokenizer(load_vocabulary(folder, settings)).save_pretrained(folder / "saved")
    return AutoTokenizer.from_pretrained(folder / "saved")


class Foreign:
    """An object such as `TransfoXLTokenizer` keeps beside its words."""

    def __init__(self) -> None:
        self.pattern = re.compile("x")


def tokenizer_attributes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("sacremoses")
    module.Foreign = Foreign  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacremoses", module)
    monkeypatch.setattr(Foreign, "__module__", "sacremoses")
    numbers = collections.OrderedDict((word, number) for number, word in enumerate(WORDS))
    return {
        "counter": collections.Counter(WORDS),
        "special": ["<eos>"],
        "lower_case": True,
        "delimiter": None,
        "idx2sym": WORDS,
        "sym2idx": numbers,
        "never_split": {"<eos>", "<unk>"},
        "moses_tokenizer": Foreign(),
    }


@pytest.mark.parametrize("name", ["vocab.pkl", "vocab.bin"])
@pytest.mark.parametrize("how", ["pickle", "torch", "old torch"])
def test_reads_pickled_vocabularies(name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = tokenizer_attributes(monkeypatch)
    if how == "pickle":
        (tmp_path / name).write_bytes(pickle.dumps(attributes))
    else:
        torch.save(attributes, tmp_path / name, _use_new_zipfile_serialization=how == "torch")
    # What is not installed is not needed.
    monkeypatch.delitem(sys.modules, "sacremoses")
    found = load_vocabulary(tmp_path, {})
    assert (found.words, found.lowercase, found.source) == (WORDS, True, tmp_path / name)
    assert (found.end, found.unknown) == ("<eos>", "<unk>")
    assert tokenizer_of(tmp_path)("The CAT\n").input_ids == [2, 3, 0]
    # What save_pretrained wrote beside it counts more.
    assert tokenizer_of(tmp_path, lower_case=False)("The cat\n").input_ids == [1, 3, 0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reads_ids_without_words(protocol: int, tmp_path: Path) -> None:
    numbers = {word: number for number, word in enumerate(WORDS)}
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps({"sym2idx": dict(reversed(numbers.items()))}, protocol))
    assert load_vocabulary(tmp_path, {}).words == WORDS


def test_reads_one_word_a_line(tmp_path: Path) -> None:
    """Words that come again, and counts behind words, are passed over, as the authors' code does."""
    (tmp_path / "vocab.txt").write_text("<eos>\n<unk> 12\nthe 9\nthe\ncat\npurrs\n", encoding="utf-8")
    found = load_vocabulary(tmp_path, {})
    assert (found.words, found.lowercase) == (WORDS, False)


def test_splits_text_as_the_authors_do(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    tokenizer = tokenizer_of(tmp_path)
    ids = tokenizer("the  cat purrs\r\n The cat,\tthe <unk>\n\n<eos> cat").input_ids
    assert ids == [2, 3, 4, 0, 1, 1, 2, 1, 0, 0, 0, 3]
    assert tokenizer.decode(ids) == "the cat purrs\n<unk> <unk> the <unk>\n\n\ncat"
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id, len(tokenizer)) == (0, 0, 1, 5)


def test_a_vocabulary_without_special_words(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(str(byte) for byte in range(120)), encoding="utf-8")
    found = load_vocabulary(tmp_path, {})
    assert (found.end, found.unknown) == (None, None)
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer("116 104\n101").input_ids == [116, 104, 101]
    assert (tokenizer.eos_token, tokenizer.unk_token, len(tokenizer)) == (None, None, 120)


class Call:
    """Calls a function when it is unpickled the usual way."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda call: call, lambda call: {"idx2sym": WORDS, "sym2idx": call}])
def test_a_malicious_pickle(protocol: int, wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    content = pickle.dumps(wrap(Call(os.system, f"touch {executed}")), protocol)
    pickle.loads(content)
    assert executed.exists()
    executed.unlink()
    (tmp_path / "vocab.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"vocab.pkl', got posix.system, which was not run; write the"):
        load_vocabulary(tmp_path, {})
    assert not executed.exists()


@pytest.mark.parametrize("new", [True, False])
def test_a_malicious_file_of_torch(new: bool, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    torch.save([Call(os.system, f"touch {executed}")], tmp_path / "vocab.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(UserError, match=r"vocab.bin', got posix.system"):
        load_vocabulary(tmp_path, {})
    assert not executed.exists()


@pytest.mark.parametrize("function", [eval, getattr, __import__, type, object, Path, torch.Tensor, collections.deque])
def test_any_other_name_is_refused(function: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": WORDS, "counter": function}))
    with pytest.raises(
        UserError, match=rf"expected only dictionaries.* got \w+(\.\w+)*\.{function.__name__}, which was not run"
    ):
        load_containers(tmp_path / "vocab.pkl")


def test_stand_ins_do_nothing(tmp_path: Path) -> None:
    """Functions of the libraries that are passed over are not called either."""
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps([Call(re.compile, "("), re.compile("a")]))
    found = load_containers(tmp_path / "vocab.pkl")
    assert [vars(stand_in) for stand_in in found] == [{}, {}]


def test_a_file_with_tensors(tmp_path: Path) -> None:
    torch.save({"idx2sym": WORDS, "sym2idx": torch.zeros(2)}, tmp_path / "vocab.bin")
    with pytest.raises(UserError, match=r"expected only dictionaries.* got torch\._utils\._rebuild_tensor_v2"):
        load_vocabulary(tmp_path, {})
