"""Outputs of frozen encoders on disk: the same as computed, found again, and safe from interruptions and full disks."""

import errno
import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertConfig

from longspan import LongspanModel
from longspan.errors import UserError
from longspan.models.window_encoder import WindowEncoder, described
from longspan.training import encoder_outputs
from longspan.training.encoder_outputs import EncoderOutputs

LENGTHS = [30, 2, 9, 3, 17, 9, 2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return tmp_path / "longspan_encoder_outputs"


def encoder(**more: Any) -> WindowEncoder:
    torch.manual_seed(0)
    bert = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
    config = LongspanModel.configured(
        vocab_size=32, encoder="bert", encoder_config=described(bert), encoder_special_ids=[[2], [3]], **more
    )
    return WindowEncoder(config.embeddings)


def documents(lengths: list[int] = LENGTHS, **columns: Any) -> Dataset:
    random = np.random.default_rng(0)
    ids = [[2, *random.integers(4, 32, size=length - 2).tolist(), 3] for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "length": lengths, **columns})


def read(outputs: EncoderOutputs, dataset: Dataset) -> list[np.ndarray]:
    rows = outputs.joined_to(dataset.select_columns(["input_ids"]).with_format("numpy"), dataset)
    assert len(rows) == len(dataset)
    return [rows[number]["inputs_embeds"] for number in range(len(rows))]


def test_they_are_what_the_encoder_says(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, dataset = encoder(), documents()
    found = read(EncoderOutputs(reader), dataset)
    for row, outputs in zip(dataset, found, strict=True):
        assert outputs.dtype == np.float16
        expected = reader(torch.tensor([row["input_ids"]]))[0].numpy()
        # Other rows in the batch may change the last digit of float16.
        np.testing.assert_allclose(outputs, expected, atol=1e-3, rtol=1e-3)
    assert f"caching the encoder's outputs for 7 documents in {cache}: 0 MiB." in capsys.readouterr().err
    assert [path.stat().st_size for path in cache.glob("*.float16")] == [sum(LENGTHS) * 16 * 2]


def test_they_are_computed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    expected = read(EncoderOutputs(encoder()), documents())
    monkeypatch.setattr(WindowEncoder, "forward", lambda *_: pytest.fail("computed again"))
    capsys.readouterr()
    # Labels, and what else a data set holds, make no difference.
    for again in (documents(), documents(labels=list(range(7)))):
        found = read(EncoderOutputs(encoder()), again)
        assert all(map(np.array_equal, found, expected))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("what", ["weights", "windows", "documents", "cut"])
def test_others_are_computed(what: str, cache: Path) -> None:
    read(EncoderOutputs(encoder()), documents())
    reader, dataset = encoder(), documents()
    if what == "weights":
        with torch.no_grad():
            reader.model.encoder.layer[0].output.dense.weight.mul_(2)
    if what == "windows":
        reader = encoder(encoder_window=8)
    if what == "documents":
        dataset = documents(LENGTHS[::-1])
    if what == "cut":
        # As a full disk may have left it.
        (path,) = cache.glob("*.float16")
        os.truncate(path, 100)
    for row, outputs in zip(dataset, read(EncoderOutputs(reader), dataset), strict=True):
        expected = reader(torch.tensor([row["input_ids"]]))[0].numpy()
        np.testing.assert_allclose(outputs, expected, atol=1e-3, rtol=1e-3)
    assert len(list(cache.glob("*.float16"))) == (1 if what == "cut" else 2)
    assert not list(cache.glob("*.unfinished"))
    assert not list(cache.glob("*.done"))


def test_what_was_computed_before_an_interruption_counts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_outputs, "_DOCUMENTS", 1)
    monkeypatch.setattr(encoder_outputs, "_SAVED_TOGETHER", 2)
    original = WindowEncoder.forward
    seen: list[int] = []

    def interrupted(self: WindowEncoder, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.append(ids.shape[1])
        return original(self, ids, *rest)

    monkeypatch.setattr(WindowEncoder, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(EncoderOutputs(encoder()), documents())
    assert not list(cache.glob("*.float16"))
    seen.clear()
    found = read(EncoderOutputs(encoder()), documents())
    # Four documents were safe, two at a time.
    assert len(seen) == 3
    monkeypatch.setattr(WindowEncoder, "forward", original)
    for row, outputs in zip(documents(), found, strict=True):
        expected = encoder()(torch.tensor([row["input_ids"]]))[0].numpy()
        np.testing.assert_allclose(outputs, expected, atol=1e-3, rtol=1e-3)


def test_a_disk_without_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(9000, 8000, 1000))
    with pytest.raises(UserError, match="for the encoder's outputs, got 0 MiB; free some, set HF_DATASETS_CACHE"):
        EncoderOutputs(encoder()).store([documents()])
    assert not list(cache.iterdir())


def test_a_disk_that_fills_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"but writing failed \(No space left on device\); free some space"):
            EncoderOutputs(encoder()).store([documents()])
    assert len(read(EncoderOutputs(encoder()), documents())) == 7


def test_stand_ins_have_the_same_shape() -> None:
    dataset = documents()
    rows = EncoderOutputs(encoder()).joined_to(dataset.select_columns(["input_ids"]), dataset, stand_ins=True)
    assert [rows[number]["inputs_embeds"].shape for number in range(7)] == [(length, 16) for length in LENGTHS]
    assert not rows[0]["inputs_embeds"].any()


def test_both_documents_of_a_pair_are_stored(cache: Path) -> None:
    first, second = documents(), documents(LENGTHS[::-1])
    both = Dataset.from_dict(
        {**first.to_dict(), "second_ids": second["input_ids"][:], "second_length": second["length"][:]}
    )
    rows = EncoderOutputs(encoder()).joined_to(both.select_columns(["input_ids", "second_ids"]), both)
    expected = [read(EncoderOutputs(encoder()), each) for each in (first, second)]
    for number in range(len(both)):
        assert rows[number].keys() == {"input_ids", "second_ids", "inputs_embeds", "second_embeds"}
        np.testing.assert_array_equal(rows[number]["inputs_embeds"], expected[0][number])
        np.testing.assert_array_equal(rows[number]["second_embeds"], expected[1][number])
    # A document is stored once, whichever place it has.
    assert len(list(cache.glob("*.float16"))) == 2
    empty = EncoderOutputs(encoder()).joined_to(both.select_columns(["input_ids", "second_ids"]), both, stand_ins=True)
    assert [len(empty[number]["second_embeds"]) for number in range(len(both))] == LENGTHS[::-1]
