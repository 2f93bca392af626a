"""A note where most tokens of the validation split are unknown, as in Chinese with words as tokens."""

from typing import Any

import datasets
import pytest

import longspan
from longspan import recipes

SIGNS = (
    "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈剑号巨阙珠称夜光"
)
#: Each a sentence of its own, which is one word where words end at spaces.
SENTENCES = [f"{SIGNS[n : n + 6]}{SIGNS[(7 * n) % 40 :][:9]}{'猫' if n % 2 else '狗'}" for n in range(40)]
ANSWERS = [{"text": [text[:2]], "answer_start": [0]} for text in SENTENCES]
DATA: dict[str, Any] = {
    "classify": {"text": SENTENCES, "label": ["a", "b"] * 20},
    "multi-label": {"text": SENTENCES, "labels": [["a"], ["b"]] * 20},
    "regression": {"text": SENTENCES, "label": [1.0, 2.0] * 20},
    "pairs": {"first": SENTENCES, "second": [text[::-1] for text in SENTENCES], "label": ["a", "b"] * 20},
    "evidence": {"parts": [[text, text[::-1]] for text in SENTENCES], "question": SENTENCES, "evidence": [[1]] * 40},
    "question-answering": {"context": SENTENCES, "question": SENTENCES, "answers": ANSWERS},
    "model-text": {"text": SENTENCES},
    "masked-words": {"text": SENTENCES},
    "ner": {"tokens": [[text, text[::-1]] for text in SENTENCES], "labels": [["B-X", "O"]] * 40},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("tokens", ["words", "bpe"])
def test_every_task_of_texts_says_so(name: str, tokens: str) -> None:
    settings: dict[str, Any] = {"tokens": tokens, "vocab_size": 400, "validation_fraction": 0.2}
    recipe = recipes.load(name, settings=settings).reading(DATA[name])
    prepared = recipe.task.prepare(recipe)
    said = prepared.processor.remark(prepared.splits["validation"])
    assert ("are not in the vocabulary" in said and "set data.tokens=bpe" in said) == (tokens == "words"), said


def test_training_prints_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"dim": 8, "heads": 2, "depth": 1, "num_train_epochs": 1, "min_steps": 0, "max_minutes": 0}
    for tokens, count in (("words", 1), ("bpe", 0)):
        longspan.train("classify", run=tmp_path / tokens, data=DATA["classify"], tokens=tokens, progress=False, **small)
        assert capsys.readouterr().err.count("longspan: 100% of the tokens of the validation split are not in") == count
