"""Processes of a server: what it prints at its start, and how it stops."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest
from decisive_words import write_run

from longspan import cli
from longspan.serving.server import serve
from longspan.tasks.document_classification.task import DocumentClassification


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "mine", ["no", "yes"], "good", "yes", "good bad film")


@contextmanager
def started(told: Path, work: Callable[[], int | None]) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """A server that `work` starts in a process of its own, with what it prints to the file `told`."""
    told.touch()
    server = psutil.Process(forked.fork(work, told))
    try:
        while not (said := [line for line in told.read_text().splitlines(keepends=True) if line.endswith("}\n")]):
            assert server.status() != psutil.STATUS_ZOMBIE
            time.sleep(0.01)
        yield server, json.loads(said[0])
    finally:
        if server.is_running():
            # Its processes end with it.
            server.terminate()
            server.wait(30)


def answered(address: str, text: str, path: str = "predict") -> dict[str, Any]:
    request = urllib.request.Request(f"{address}/{path}", headers={"Content-Type": "application/json"})
    request.data = json.dumps({"inputs": [text]}).encode() if path == "predict" else None
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_stopped_server_answers_what_it_accepted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, free, told = DocumentClassification.predict, tmp_path / "free", tmp_path / "told.txt"

    def predict(self: Any, run: Any, rows: Any) -> Any:
        while any(row.values["text"] == "good film" for row in rows) and not free.exists():
            time.sleep(0.02)
        return plain(self, run, rows)

    def announce(found: dict[str, Any]) -> None:
        print(json.dumps(found), flush=True)

    monkeypatch.setattr(DocumentClassification, "predict", predict)
    with (
        started(told, lambda: serve(folder, port=0, announce=announce)) as (server, found),
        ThreadPoolExecutor(30) as pool,
    ):
        address = found["address"]
        futures = [pool.submit(answered, address, "good film") for _ in range(30)]
        while answered(address, "", "health")["requests"] < 30:
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.status() != psutil.STATUS_ZOMBIE
        free.touch()
        assert [future.result()["predictions"][0]["label"] for future in futures] == ["yes"] * 30
        assert server.wait(20) == 0
        assert "Traceback" not in told.read_text()


def children(server: psutil.Process) -> list[psutil.Process]:
    found = server.children(recursive=True)
    return [one for one in found if "spawn_main" in " ".join(one.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_several_processes(how: signal.Signals, folder: Path, tmp_path: Path) -> None:
    command = ["serve", str(folder), "--port=0", "--workers=2", "--json"]
    with started(tmp_path / "told.txt", lambda: cli.main(command)) as (server, told):
        assert told["run"] == str(folder)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: answered(told["address"], "good film"), range(40)))
        assert {one["predictions"][0]["label"] for one in found} == {"yes"}
        workers = children(server)
        assert len(workers) == 2
        server.send_signal(how)
        assert server.wait(30) == (0 if how == signal.SIGTERM else -how)
        # None stays, with its model and the port, even if nobody could tell it to end.
        assert not psutil.wait_procs(workers, 20)[1]


def test_mistakes_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        ([str(folder / "none")], "there is no run folder"),
        ([str(folder), "--workers=0"], "expected at least one worker, got 0"),
        ([str(folder), "--max-queue=0"], "expected a limit above 0 (--max-queue), got 0"),
        ([str(folder), "--host=nowhere.invalid"], "expected to bind to nowhere.invalid, port 8000"),
        ([str(folder), f"--label={os.devnull}"], "expected rows with the columns 'text'"),
        ([str(folder), "--label=nothing.csv"], "expected a table to label at 'nothing.csv'"),
    ):
        assert cli.main(["serve", *arguments]) == 2
        assert told in capsys.readouterr().err
