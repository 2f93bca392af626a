"""Processes of a server: what it prints at its start, and how it stops."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from decisive_words import write_run

from longspan import cli

#: A server that answers "good film" once there is a file.
SLOW = """
import json, sys, time
from pathlib import Path
from longspan.serving.server import serve
from longspan.tasks.document_classification.task import DocumentClassification

plain = DocumentClassification.predict

def waiting(self, run, rows):
    while any(row.values["text"] == "good film" for row in rows) and not Path(sys.argv[2]).exists():
        time.sleep(0.02)
    return plain(self, run, rows)

DocumentClassification.predict = waiting
serve(sys.argv[1], port=0, announce=lambda told: print(json.dumps(told), flush=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "mine", ["no", "yes"], "good", "yes", "good bad film")


@contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server with what it printed."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            assert one.stdout is not None
            line = one.stdout.readline()
            assert line, one.communicate()[1]
            yield one, json.loads(line)
        finally:
            if one.poll() is None:
                # Its processes end with it.
                one.terminate()


def answered(address: str, text: str, path: str = "predict") -> dict[str, Any]:
    request = urllib.request.Request(f"{address}/{path}", headers={"Content-Type": "application/json"})
    request.data = json.dumps({"inputs": [text]}).encode() if path == "predict" else None
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_stopped_server_answers_what_it_accepted(folder: Path, tmp_path: Path) -> None:
    with started("-c", SLOW, str(folder), str(tmp_path / "free")) as (server, told), ThreadPoolExecutor(30) as pool:
        address = told["address"]
        futures = [pool.submit(answered, address, "good film") for _ in range(30)]
        while answered(address, "", "health")["requests"] < 30:
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.poll() is None
        (tmp_path / "free").touch()
        assert [future.result()["predictions"][0]["label"] for future in futures] == ["yes"] * 30
        assert server.wait(20) == 0
        assert server.stderr is not None
        assert "Traceback" not in server.stderr.read()


def children(server: Any) -> list[psutil.Process]:
    found = psutil.Process(server.pid).children(recursive=True)
    return [one for one in found if "spawn_main" in " ".join(one.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_several_processes(how: signal.Signals, folder: Path) -> None:
    with started("-m", "longspan", "serve", str(folder), "--port=0", "--workers=2", "--json") as (server, told):
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
