"""`longspan check`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest

from longspan import cli
from longspan.errors import UserError
from longspan.results.check import Checked, ModelReport

FAILED = Checked("beams", "failed", "A cache follows its rows.", 0.25, 1e-4, "eager, reordered")
ENDED = Checked("saving", "failed", "The same after saving.", reason="RuntimeError: no file")
OPEN = Checked("packing", "not claimed", "As if separate.", 0.5, 1e-4, "document 2", "it is an encoder")
PASSED = Checked("other-rows", "passed", "Nothing changes.", 2e-7, 1e-4, "alone")
NOTHING = Checked("generation", "not applicable", "The same logits.", reason="it reads both directions")


def report(model: str, *checks: Checked) -> ModelReport:
    return ModelReport(model, "SomeForCausalLM", "causal", ["eager"], checks, 1234, 1.0, {"torch": "2.13.0"})


@pytest.fixture
def fake_check(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], bool]]:
    """Replace checks by a stand-in, which finds a fault in models whose names begin with "bad"."""
    calls = []

    def check_model(model: str, *, only: list[str], compiled: bool, progress: object) -> ModelReport:
        calls.append((model, only, compiled))
        return report(model, PASSED, *((FAILED, ENDED, OPEN) if model.startswith("bad") else ()), NOTHING)

    monkeypatch.setattr("longspan.testing.models.check_model", check_model)
    return calls


def test_a_model_without_faults(
    fake_check: list[tuple[str, list[str], bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "good", "--only", "beams, other-rows", "--compile"]) == 0
    assert fake_check == [("good", ["beams", "other-rows"], True)]
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("other-rows"))
    assert row == ["other-rows", "passed", "2.0e-07", "1e-04", "alone"]
    assert "good (SomeForCausalLM, 1,234 parameters; torch 2.13.0): no check failed." in out


def test_faults_give_exit_code_1(
    fake_check: list[tuple[str, list[str], bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "bad"]) == 1
    out = capsys.readouterr().out
    assert "2 of 4 checks failed." in out
    assert "beams failed: A cache follows its rows. Deviation: 2.5e-01." in out
    assert "saving failed: The same after saving. But: RuntimeError: no file" in out
    assert "packing not claimed: it is an encoder" in out
    assert "generation:" not in out


def test_several_models_are_one_table(
    fake_check: list[tuple[str, list[str], bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "good", "bad"]) == 1
    out = capsys.readouterr().out
    good, bad = (line for line in out.splitlines() if line.startswith(("good ", "bad ")) and "(" not in line[:8])
    assert good.split() == ["good", "2e-07", "-", "-", "-", "-"]
    assert bad.split()[:4] == ["bad", "2e-07", "-", "FAILED"]
    assert "not claimed" in bad


def test_json(fake_check: list[tuple[str, list[str], bool]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "good", "bad", "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert (good["failed"], bad["failed"]) == (0, 2)
    assert bad["checks"][1]["deviation"] == 0.25


def test_the_list_of_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--list"]) == 0
    assert "cached-chunks" in capsys.readouterr().out
    assert cli.main(["check", "--list", "--json"]) == 0
    assert "beams" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a model to check, got none"),
        (["lama"], "did you mean 'llama'?"),
        (["gpt2", "--only", "beam"], "there is no check 'beam'; did you mean 'beams'?"),
        (["gpt2", "--onyl", "beams"], "did you mean '--only'?"),
    ],
)
def test_mistakes_give_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 48}))
    assert cli.main(["check", str(tmp_path), "--only", "other-rows,cached-steps"]) == 0
    assert "GPT2LMHeadModel" in capsys.readouterr().out


def test_what_was_checked_before_a_mistake_or_an_interrupt_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code in ((UserError("there is no model type 'mambo'."), 2), (KeyboardInterrupt(), 130)):

        def check_model(model: str, error: BaseException = error, **_: object) -> ModelReport:
            if model == "mambo":
                raise error
            return report(model, PASSED)

        monkeypatch.setattr("longspan.testing.models.check_model", check_model)
        assert cli.main(["check", "good", "mambo", "later", "--json"]) == code
        assert [one["model"] for one in json.loads(capsys.readouterr().out)] == ["good"]
