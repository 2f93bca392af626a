"""Processes of their own: their output and their errors are shown."""

from pathlib import Path

import pytest

from longspan.verbs import jobs

DIES = """
import os, signal, sys
print("longspan: 3 rows repeat an earlier one.", file=sys.stderr)
print("Grüße \\x1b[31m", file=sys.stderr, flush=True)
what = sys.argv[1]
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
if what == "raises":
    raise ValueError("Grüße, two\\nlines")
if what == "refuses":
    print("longspan: expected one, got two; leave one out.", file=sys.stderr)
    print("  0%|          |", file=sys.stderr)
    sys.exit(2)
sys.exit(int(what))
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("killed", "the process was killed by signal 9 (SIGKILL), as the system does when memory runs out."),
        ("terminated", "the process was killed by signal 15 (SIGTERM)."),
        ("raises", "the process ended with code 1: ValueError: Grüße, two"),
        ("refuses", "expected one, got two; leave one out."),
        ("7", r"the process ended with code 7: Grüße \x1b[31m"),
        ("0", None),
    ],
)
def test_the_reason_is_that_of_the_end(
    what: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONUTF8", "1")
    assert jobs.run_module("dies", what) == told
    assert "Grüße" in capsys.readouterr().err


def test_what_says_nothing_has_a_code() -> None:
    assert jobs.reason(3, "") == "the process ended with code 3"
    assert jobs.reason(-64, "x") == "the process was killed by signal 64 (SIGRTMAX)."
