"""Language modelling from a recipe's data: vocabulary from training alone, documents whole, mistakes named early."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from longspan import cli, tasks
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.tasks.base.task import Prepared, Recipe
from longspan.tasks.language_modelling.options import LanguageModellingData, TrainingOptions

TASK = tasks.load("language_modelling")
TINY = ["model.dim=8", "model.depth=1", "model.heads=2", "training.per_device_train_batch_size=4"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def recipe(folder: Path, model: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    data = LanguageModellingData(path=str(folder), tokens="characters", **settings)
    return Recipe("mine", TASK, data, model or {}, options=TrainingOptions())


def prepare(folder: Path, **settings: Any) -> Prepared:
    return TASK.prepare(recipe(folder, **settings))


def build(folder: Path, **model: Any) -> Any:
    return TASK.build_model(recipe(folder, {"dim": 8, "depth": 1, "heads": 2, **model}), prepare(folder))


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    for name, text in {"train": "abcabcab\n" * 20, "valid": "abxé\n", "test": "aab"}.items():
        (tmp_path / "plays" / name).mkdir(parents=True)
        (tmp_path / "plays" / name / "a.txt").write_text(text, encoding="utf-8")
    return tmp_path / "plays"


def test_documents_become_tokens_and_numbers(plays: Path) -> None:
    prepared = prepare(plays)
    assert prepared.details == {}
    known = ["<pad>", "<unk>", "<|endoftext|>", "a", "b", "c", "\n"]
    assert tokenizer_of(prepared.processor).get_vocab() == {token: number for number, token in enumerate(known)}
    # The vocabulary knows training text only.
    assert prepared.splits["validation"]["input_ids"][:] == [[3, 4, 1, 1, 6]]
    assert prepared.data == {
        "train": {"documents": 1, "tokens": 180, "unknown": 0, "characters": 180, "bytes": 180, "longest": 180},
        "validation": {"documents": 1, "tokens": 5, "unknown": 2, "characters": 5, "bytes": 6, "longest": 5},
        "test": {"documents": 1, "tokens": 3, "unknown": 0, "characters": 3, "bytes": 3, "longest": 3},
        "skipped": {},
        "encodings": {},
        "duplicates": {},
    }


def test_the_model_is_causal_and_knows_its_tokens(plays: Path) -> None:
    model = build(plays)
    assert isinstance(model, TASK.model_class)
    assert model.config.causal
    assert model.config.vocab_size == 7
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 2, 2)


def test_models_that_cannot_be(plays: Path) -> None:
    with pytest.raises(UserError, match=r"model.causal=false would show the model the tokens .* leave it out"):
        TASK.configure({"causal": False}, {})
    assert TASK.configure({"cutoffs": [100, 99_999]}, {}).vocab_size == 100_000
    with pytest.raises(UserError, match=r"increasing cutoffs between 0 and the vocabulary's 7 tokens, got \[9\]"):
        build(plays, cutoffs=[9])
    with pytest.raises(UserError, match=r"data.max_length=5 cuts documents, but language modelling reads them in full"):
        prepare(plays, max_length=5)


@pytest.mark.parametrize(
    ("name", "content", "override", "message"),
    [
        ("a.txt", "", "", "expected text in 'a.txt', got an empty file; choose a file with text."),
        (
            "a.txt",
            "some words\n" * 90,
            "",
            "expected at least 1,024 tokens to train on, 4 rows (training.per_device_train_batch_size) of 256 "
            "(training.segment_length), got 892; lower one of the two, or use more text.",
        ),
        (
            "a.txt",
            "some words\n" * 200,
            "data.validation_fraction=0",
            "expected a validation split, got none; set data.validation or data.validation_fraction.",
        ),
        ("a.txt", b"words\xff", "", "expected text in UTF-8, got another encoding or no text at a.txt, byte 5"),
        ("texts/a.png", "words", "", "got only others (.png); choose another folder"),
        ("a.csv", "body\nwords\n", "", "expected a column 'text' in a.csv, got 'body'; set data.text_column"),
        ("a.txt", "some words\n" * 200, "model.causal=false", "model.causal=false would show the model the tokens"),
    ],
)
def test_mistakes_end_with_one_sentence_before_a_run_folder_is_made(
    name: str, content: str | bytes, override: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    given = path.parent if path.parent != tmp_path else path
    overrides = [f"data.path={given}", *TINY, *([override] if override else [])]
    assert cli.main(["train", "shakespeare", *overrides, "--run", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("longspan: ")
    assert message in last
    assert not (tmp_path / "run").exists()
