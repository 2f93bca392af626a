"""Mistakes with language models at the command line: one sentence, exit code 2, and nothing written."""

import io
from pathlib import Path

import pytest
from language_runs import make_run

from longspan import cli


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", "the quick brown fox.\n" * 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate", "{run}", "--prompt", "fox & dog"],
            "that this model has seen, got '&', 'd', 'g'; leave them out.",
        ),
        (["generate", "{run}", "--prompt-file", "{tmp}/none.txt"], "no such file or directory: {tmp}/none.txt."),
        (
            ["generate", "{run}", "--prompt-file", "{tmp}/latin.txt"],
            "expected text in UTF-8 from '{tmp}/latin.txt', got",
        ),
        (["generate", "{run}", "--prompt-file", "-"], "expected text in UTF-8 from '-', got something else at byte 1"),
        (["generate", "{run}", "--max-new-tokens", "0"], "max_new_tokens must be at least 1"),
        (["generate", "{run}", "--temperature", "0"], "for the most likely tokens, use greedy"),
        (["generate", "{run}", "--temperature", "nan"], "temperature must be above 0, got nan"),
        (["generate", "{run}", "--top-p", "2"], "top_p must be above 0 and at most 1"),
        (["generate", "{tmp}/rum"], "there is no run folder '{tmp}/rum'"),
        (["evaluate", "{run}", "--context", "slided"], "there is no context 'slided'; did you mean 'sliding'?"),
        (["evaluate", "{run}", "--context", "sliding", "--window", "-3"], "window must be at least 1, got -3"),
        (["evaluate", "{run}", "--attention-length", "9"], "expected a model with mixers that have a memory"),
        (["evaluate", "{run}", "--data", "{tmp}/empty.txt"], "expected text in 'empty.txt', got an empty file"),
        (["evaluate", "{run}", "--data", "{tmp}/latin.txt"], "another encoding or no text at latin.txt, byte 1"),
        (["convert", "{tmp}/nothing", "{tmp}/out"], "there is no checkpoint '{tmp}/nothing'"),
        (["convert", "{run}", "{run}"], "exists; choose another folder, or replace it with --overwrite."),
        (["convert", "{run}", "{tmp}", "--overwrite"], "'{tmp}' is not a run folder, so it is not replaced"),
        (["convert", "{run}", "{tmp}/out"], "expected a Transformer-XL"),
    ],
)
def test_mistakes_end_with_one_sentence(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"f\xf6x")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"f\xf6x")))
    before = {path: path.stat().st_mtime_ns for root in (tmp_path, run) for path in root.rglob("*") if path.is_file()}
    names = {"run": str(run), "tmp": str(tmp_path)}
    assert cli.main([argument.format(**names) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    # Progress bars may come before it.
    last = captured.err.replace("\r", "\n").strip().splitlines()[-1]
    assert last.startswith("longspan: ")
    assert message.format(**names) in last
    assert "Traceback" not in captured.err
    after = {path: path.stat().st_mtime_ns for root in (tmp_path, run) for path in root.rglob("*") if path.is_file()}
    assert after == before
