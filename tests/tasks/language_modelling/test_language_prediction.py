"""Predictions of a language model: how well each document is predicted, as if it were the only one."""

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from language_runs import make_run

from longspan import cli, evaluate, predict
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.tasks.base import answering
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling.task import LossPrediction
from longspan.verbs.runs import load_run

TEXT = "".join(f"line {number} of the öld dog's fox.\n" for number in range(12))
DOCUMENTS = ["the fox", "line 3 of the öld dog's fox.\n" * 4, "f", "ö", "dog's § fox", "the öld dog"]
SCORES = ("loss", "perplexity", "bits_per_byte", "bits_per_character")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "run", TEXT))


def rows(*texts: str | None) -> list[Row]:
    return [Row({"text": text}, f"row {number}") for number, text in enumerate(texts)]


def alone(run: Run, text: str, folder: Path) -> dict[str, Any]:
    (folder / "alone.txt").write_text(text, encoding="utf-8")
    return evaluate(run, str(folder / "alone.txt")).to_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "carry_states"), [("additive", True), ("additive", False), ("softmax", True), ("local", True)]
)
def test_each_document_scores_as_it_does_alone(mixer: str, carry_states: bool, tmp_path: Path) -> None:
    """With carried states and in sliding windows."""
    made = load_run(make_run(tmp_path / "run", TEXT, mixer, carry_states=carry_states))
    found = list(predict(made, rows(*DOCUMENTS)))
    assert [one.where for one in found] == [f"row {number}" for number in range(len(DOCUMENTS))]
    for text, one in zip(DOCUMENTS, found, strict=True):
        assert isinstance(one, LossPrediction)
        expected = alone(made, text, tmp_path)
        assert one.error is None
        assert one.tokens == expected["tokens"]
        for name in SCORES:
            # Batches of other shapes round otherwise, in float32.
            assert getattr(one, name) == pytest.approx(expected[name], rel=1e-5), (text, name)


def test_the_scores_belong_together(run: Run) -> None:
    (found,) = predict(run, rows("the öld dog"))
    assert isinstance(found, LossPrediction)
    assert found.loss is not None
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert (found.tokens, found.targets) == (11, 12)
    # Twelve targets, the end among them; one character has two bytes.
    assert found.bits_per_character == pytest.approx(found.loss * 12 / 11 / math.log(2))
    assert found.bits_per_byte == pytest.approx(found.loss * 12 / 12 / math.log(2))
    assert set(found.to_dict()) == {"where", *SCORES, "tokens", "targets"}
    json.dumps(found.to_dict())


def test_empty_and_broken_rows_keep_their_place(run: Run) -> None:
    given = [
        *rows("the fox", "", " \n\t", None),
        Row({}, "row 4", "broken UTF-8"),
        Row({"text": "dog"}, "row 5"),
    ]
    found = list(predict(run, given))
    assert [one.where for one in found] == [f"row {number}" for number in range(6)]
    assert [one.error for one in found] == [None, *["empty document"] * 3, "broken UTF-8", None]
    assert found[4].to_dict() == {"where": "row 4", "error": "broken UTF-8"}
    kept = list(predict(run, rows("the fox", "dog")))
    assert [found[0].to_dict()["loss"], found[5].to_dict()["loss"]] == [one.to_dict()["loss"] for one in kept]
    assert list(predict(run, [])) == []
    assert [one.error for one in predict(run, rows("", None))] == ["empty document"] * 2


@pytest.mark.parametrize("carry_states", [True, False])
def test_documents_that_learned_positions_do_not_reach_over(carry_states: bool, tmp_path: Path) -> None:
    """With carried states the whole document must fit, its end too; in windows it need not."""
    folder = make_run(tmp_path / "run", TEXT, position="learned", max_positions=12, carry_states=carry_states)
    fits, longer = "the old dog", "the old dogs"
    assert (len(fits) + 1, len(longer) + 1) == (12, 13)
    first, second, third = predict(folder, rows(fits, longer, fits))
    assert first.error is None
    assert third.error is None
    if carry_states:
        assert second.error is not None
        assert "12" in second.error
        assert "13" in second.error
    else:
        assert second.error is None
    assert first.to_dict()["loss"] == pytest.approx(alone(load_run(folder), fits, tmp_path)["loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "characters"), [(1, 10**6), (2, 10**6), (4, 10**6), (512, 8), (512, 40)])
def test_windows_do_not_change_numbers(count: int, characters: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(predict(run, rows(*DOCUMENTS, "", *DOCUMENTS)))
    monkeypatch.setattr(answering, "WINDOW_EXAMPLES", count)
    monkeypatch.setattr(answering, "WINDOW_CHARACTERS", characters)
    parts = list(predict(run, rows(*DOCUMENTS, "", *DOCUMENTS)))
    assert [(one.where, one.error) for one in parts] == [(one.where, one.error) for one in whole]
    for part, one in zip(parts, whole, strict=True):
        assert isinstance(part, LossPrediction)
        assert isinstance(one, LossPrediction)
        if one.loss is not None:
            assert part.loss == pytest.approx(one.loss, rel=1e-5)


def test_rows_are_read_as_they_are_needed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "WINDOW_EXAMPLES", 4)
    read = 0

    def endless() -> Iterator[Row]:
        nonlocal read
        while True:
            read += 1
            yield Row({"text": "the fox"}, f"row {read}")

    found = predict(run, endless())
    assert read == 0
    for number in range(1, 7):
        assert next(found).where == f"row {number}"
        assert read <= 4 * ((number + 3) // 4)


def test_what_was_read_before_a_failure_comes_first(run: Run) -> None:
    def failing() -> Iterator[Row]:
        yield from rows("the fox", "dog")
        raise UserError("the file ends in the middle.")

    found = predict(run, failing())
    assert [next(found).error, next(found).error] == [None, None]
    with pytest.raises(UserError, match="ends in the middle"):
        next(found)


def test_losses_that_are_not_finite_are_said(tmp_path: Path) -> None:
    made = load_run(make_run(tmp_path / "run", TEXT))
    next(made.model.parameters()).data.fill_(math.nan)
    with pytest.raises(UserError, match="expected finite outputs of the model"):
        list(predict(made, rows("the fox")))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", TEXT)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("the fox\n\nöld\n".encode())))
    assert cli.main(["predict", str(folder), "-"]) == 2
    shown = capsys.readouterr()
    first, second, third = map(json.loads, shown.out.splitlines())
    assert first["tokens"] == 7
    assert (second["where"], second["error"]) == ("standard input, line 2", "no text")
    assert third["bits_per_byte"] < third["bits_per_character"]
    assert "no predictions for 1 of 3" in shown.err
    (tmp_path / "a.txt").write_text("line one\nline two\n", encoding="utf-8")
    assert cli.main(["predict", str(folder), str(tmp_path / "a.txt")]) == 0
    # A text file is one document.
    assert json.loads(capsys.readouterr().out)["tokens"] == 18
