"""Texts that are unlike the training data."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

import longspan
from longspan import UserError
from longspan.data.familiarity import Familiarity

WORDS = [f"word{number}" for number in range(200)]
SMALL = ["model.dim=8", "model.heads=2", "data.vocab_size=500", "training.num_train_epochs=1", "training.min_steps=0"]


def _texts(count: int, seed: int = 0, least: int = 5) -> list[np.ndarray]:
    """Texts of 5 to 60 tokens, of which low numbers are frequent."""
    draw = np.random.default_rng(seed)
    return [draw.geometric(0.1, draw.integers(least, 60)).clip(0, 99) for _ in range(count)]


def _fitted(texts: list[np.ndarray], validation: list[np.ndarray], unknown: int | None = None) -> Familiarity:
    return Familiarity.fitted(texts, np.bincount(np.concatenate(texts), minlength=100), unknown, validation)


def test_costs_are_those_of_the_formula() -> None:
    texts = [np.array([1, 1, 2]), np.array([1, 3]), np.array([], np.int64)]
    found = _fitted(texts, texts)
    total = 5 + 0.5 * 100
    for token, count in ((1, 3), (2, 1), (3, 1), (50, 0)):
        assert found.costs[token] == pytest.approx(-math.log((count + 0.5) / total))
    # Of each text, by the counts of the other one.
    first = [-math.log(1.5 / (total - 3))] * 2 + [-math.log(0.5 / (total - 3))]
    second = [-math.log(2.5 / (total - 2)), -math.log(0.5 / (total - 2))]
    assert found.mean == pytest.approx((np.mean(first) + np.mean(second)) / 2)
    assert found.within == pytest.approx((np.var(first) + np.var(second)) / 2)


def test_one_in_a_hundred_is_a_false_alarm_at_any_length() -> None:
    found = _fitted(_texts(4000), _texts(4000, 1))
    # Four standard errors of a share of 0.01 in 4,000.
    assert found.validation == pytest.approx(0.01, abs=0.0063)
    for length in (5, 20, 50):
        shares = [found.unfamiliar(ids[:length]) for ids in _texts(4000, 2, 50)]
        assert np.mean(shares) < 0.03


def test_rare_and_unknown_tokens_are_unfamiliar() -> None:
    found = _fitted(_texts(1000), [], unknown=0)
    assert found.unfamiliar(np.full(10, 90))
    assert found.unfamiliar(np.zeros(10, np.int64))
    assert not found.unfamiliar(np.array([], np.int64))
    assert not found.unfamiliar(np.arange(1, 11))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    assert Familiarity.read(tmp_path) is None
    _fitted(_texts(10), []).save(tmp_path)
    found = Familiarity.read(tmp_path)
    assert found is not None
    assert found.limit == _fitted(_texts(10), []).limit
    path = tmp_path / "familiarity.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"expected frequencies of tokens in .*familiarity\.safetensors"):
        Familiarity.read(tmp_path)


def test_predictions_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)
    rows = [
        {"text": " ".join(draw.choices(WORDS[:20], k=20)) + (" good" if number % 2 else " bad"), "label": number % 2}
        for number in range(80)
    ]
    data = {"train": rows[:60], "validation": rows[60:]}
    run = longspan.train("classify", SMALL, data=data, run=tmp_path / "run", progress=False)
    strange = "ein ganz anderer satz ohne bekannte wörter"
    capsys.readouterr()
    for one in (run, longspan.load(tmp_path / "run")):
        known, unknown = one.predict([rows[0]["text"], strange])
        assert (known.unfamiliar, unknown.unfamiliar) == (None, True)
        assert unknown.label is not None
        assert "unfamiliar" not in known.to_dict()
        assert unknown.to_dict()["unfamiliar"] is True
    assert "1 of 2 texts are unlike the training data (unfamiliar)" in capsys.readouterr().err
    table = run.predict([rows[0]["text"], strange]).to_pandas()
    assert table["unfamiliar"].tolist() == [None, True]
