"""Predictions by several processes: those of one process, row for row, whatever is killed and wherever it goes on."""

import contextlib
import errno
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from decisive_words import write_run

from longspan import Predictor, cli
from longspan.data.graphs.graph import Features, Graph
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.tasks.base import answering
from longspan.verbs import shards
from longspan.verbs.shards import MANIFEST, predict_shards, read_shards, shard_name, write_shard


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that answers "yes" to documents with the word "good", and reads only their last four words."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_run(folder, ["no", "yes"], "good", "yes", "good bad film", ["data.max_length=4", "data.keep=last"])


def write_rows(path: Path, rows: int, seed: int = 0) -> Path:
    choose = random.Random(seed)
    lines = [" ".join(choose.choices(["good", "bad", "film"], k=choose.randint(1, 9))) for _ in range(rows)]
    lines[::100] = ['""'] * len(lines[::100])
    path.write_text("\n".join(["text", *lines]) + "\n", encoding="utf-8")
    return path


def write_here(
    predictor: Predictor, paths: Any, folder: Path, finished: Any, jobs: int | None
) -> Iterator[dict[str, Any]]:
    """Write shards by this process, which spares seconds of imports."""
    for shard in read_shards(predictor, paths, dict(finished)):
        yield write_shard(predictor, folder, shard)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards, written by this process."""
    monkeypatch.setattr(shards, "by_processes", write_here)
    monkeypatch.setattr(shards, "_ROWS", 20)
    monkeypatch.setattr(answering, "WINDOW_EXAMPLES", 8)


def in_one_process(run: Path, source: Path, folder: Path) -> pa.Table:
    assert cli.main(["predict", str(run), str(source), "--output", str(folder / "whole.parquet"), "--overwrite"]) == 2
    return pq.read_table(folder / "whole.parquet")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / MANIFEST).read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("here")
def test_the_union_of_shards_is_the_table_of_one_process(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_rows(tmp_path / "rows.csv", 90)
    whole = in_one_process(run, source, tmp_path)
    notes = capsys.readouterr().err
    command = ["predict", str(run), str(source), "--output", str(tmp_path / "out"), "--jobs", "2"]
    assert cli.main([*command, "--json"]) == 2
    printed = capsys.readouterr()
    result = {"shards": 4, "rows": 90, "errors": 1, "folder": str(tmp_path / "out")}
    assert json.loads(printed.out) == result
    assert printed.err.splitlines()[0] == notes.splitlines()[0]
    assert "no predictions for 1 of 90 examples" in printed.err
    assert pq.read_table(tmp_path / "out").equals(whole)
    # Where one process would compute anew, so that sums are those of the same batches.
    assert [line["rows"] for line in lines(tmp_path / "out")[1:-1]] == [24, 24, 24, 18]
    assert lines(tmp_path / "out")[-1] == {"complete": True, "shards": 4, "rows": 90}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    assert cli.main(command) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.usefixtures("here")
def test_shards_that_are_missing_or_damaged_are_written_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write_rows(tmp_path / "rows.csv", 90), tmp_path / "out"
    predictor = Predictor(run)
    predict_shards(predictor, [source], out, jobs=1)
    whole = pq.read_table(out)
    (out / "part-00000.parquet").unlink()
    os.truncate(out / "part-00002.parquet", 100)
    (out / ".part-00001-0.parquet").write_bytes(b"left by a process that was killed")
    # Killed while it wrote the line of the last shard.
    text = (out / MANIFEST).read_text(encoding="utf-8")
    (out / MANIFEST).write_text(text[: text.index('"shard": 3') + 20], encoding="utf-8")
    capsys.readouterr()
    predict_shards(predictor, [source], out, jobs=1)
    assert "part-00000.parquet is missing or damaged, and is written again" in capsys.readouterr().err
    assert pq.read_table(out).equals(whole)
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, *(f"part-0000{n}.parquet" for n in range(4))]
    assert [line.get("shard") for line in lines(out)] == [None, 1, 0, 2, 3, None]


@pytest.mark.usefixtures("here")
def test_predictions_of_different_origins_are_never_mixed(run: Path, tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "rows.csv", 90), tmp_path / "out"
    predict_shards(Predictor(run), [source], out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UserError, match=r"none\.csv"):
        predict_shards(Predictor(run), [tmp_path / "none.csv"], tmp_path / "new")
    assert predict_shards(Predictor(run), [source], tmp_path / "new")["rows"] == 90
    other = write_run(tmp_path / "other", ["no", "yes"], "bad", "yes", "good bad film")
    with pytest.raises(UserError, match=r"got '.*out' with those of another model; name another"):
        predict_shards(Predictor(other), [source], out)
    with pytest.raises(UserError, match="with those of other options"):
        predict_shards(Predictor(run, min_probability=0.9), [source], out)
    with pytest.raises(UserError, match="with those of other data, or these have changed"):
        predict_shards(Predictor(run), [write_rows(tmp_path / "more.csv", 90)], out)
    write_rows(source, 90, seed=1)
    with pytest.raises(UserError, match="with those of other data, or these have changed"):
        predict_shards(Predictor(run), [source], out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("change", ["other", "fewer"])
def test_rows_of_a_folder_that_change_are_noticed(change: str, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02}.txt").write_text("good film", encoding="utf-8")
    predict_shards(Predictor(run), [folder], tmp_path / "out")
    if change == "other":
        (folder / "30.txt").write_text("bad films", encoding="utf-8")
    else:
        for number in range(40, 60):
            (folder / f"{number}.txt").unlink()
    with pytest.raises(UserError, match="expected the rows that these predictions began with, got others"):
        predict_shards(Predictor(run), [folder], tmp_path / "out")


@pytest.mark.usefixtures("here")
def test_a_full_disk_leaves_no_shard_that_is_half_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write_rows(tmp_path / "rows.csv", 90), tmp_path / "out"
    usual, written = pq.write_table, []

    def write(table: pa.Table, file: Any) -> None:
        written.append(table)
        usual(table, file)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(out))

    monkeypatch.setattr(pq, "write_table", write)
    command = ["predict", str(run), str(source), "--output", str(out), "--jobs", "1"]
    assert cli.main(command) == 2
    assert f"no space left on the device for {out}; free some." in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, "part-00000.parquet", "part-00001.parquet"]
    assert len(lines(out)) == 3
    assert cli.main(command) == 2
    assert pq.read_table(out).equals(in_one_process(run, source, tmp_path))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--jobs", "2"], r"expected --output DIR, a folder, with --jobs, got none; name a folder\."),
        (["--jobs", "2", "--output", "a.csv"], r"a folder, with --jobs, got a\.csv; name a folder\."),
        (["--ray", "--output", "out", "--format", "csv"], "expected --ray without --format, got both; leave one out"),
        (["--jobs", "2", "--output", "out", "--overwrite"], "expected --jobs without --overwrite, got both"),
        (["--jobs", "0", "--output", "out"], "expected --jobs of at least 1, got 0; choose a larger number"),
        (["--jobs", "1", "--output", "{run}"], "expected a new folder for shards at .*, got one with .* in it"),
        (["--jobs", "1", "--output", "{run}/config.json/out"], "not a directory"),
    ],
)
def test_flags_that_do_not_fit_are_named(
    flags: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_rows(tmp_path / "rows.csv", 3)
    flags = [flag.replace("{run}", str(run)) for flag in flags]
    assert cli.main(["predict", str(run), str(source), *flags]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.usefixtures("here")
def test_an_interrupt_says_that_the_command_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> Iterator[dict[str, Any]]:
        yield next(write_here(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "by_processes", interrupted)
    source = write_rows(tmp_path / "rows.csv", 90)
    assert cli.main(["predict", str(run), str(source), "--jobs", "2", "--output", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "longspan: interrupted: the same command continues where it stopped.\n"
    assert [line.get("shard") for line in lines(tmp_path / "out")] == [None, 0]


def test_standard_input_cannot_be_read_again(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="got standard input, which is read once; name a file"):
        predict_shards(Predictor(run), ["-"], tmp_path / "out")
    assert cli.main(["predict", str(run), "--jobs", "2", "--output", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_values_are_told_apart_by_content_and_counted_in_bytes(tmp_path: Path) -> None:
    def digests(*values: Any) -> list[str]:
        rows = ([Row({"value": value}, f"row {number}")] for number, value in enumerate(values))
        return [digest for _, digest in shards._cut(rows)]

    def graph(weight: float) -> Graph:
        edges = np.zeros((2, 0), np.int64)
        features = Features.dense(np.array([[weight], [1.0]]))
        return Graph("web.npz", ["a", "b"], features, edges, np.zeros((0, 0), np.float32), np.zeros(2, np.int64))

    def items(title: str) -> Dataset:
        return Dataset.from_dict({"item": ["1"], "title": [title]})

    for make, one, other in ((graph, 1.0, 2.0), (items, "old", "new"), (np.array, [1.0], [2.0])):
        make_one: Any = make
        first = make_one(one)
        assert digests(first, first) == digests(make_one(one), make_one(one)) != digests(first, make_one(other))
    with pytest.raises(UserError, match="got one with a object; predict with one process, without --jobs and --ray"):
        digests(object())
    assert len(digests(*[bytes(6_000_000)] * 7)) == 3


@pytest.mark.parametrize("line", ['{"shard": 0}', "[]", "3", '{"shard": "0", "rows": 1}'])
def test_a_damaged_list_of_shards_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(f'{{"from": {{}}}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match="got a damaged file; name another folder"):
        shards.Manifest(tmp_path, {})


def start(run: Path, source: Path, out: Path, *flags: str) -> psutil.Process:
    command = ["predict", str(run), str(source), "--output", str(out), *flags]
    if "--ray" in flags:
        # What Ray reads when it is imported may have been set otherwise by then in this process.
        return psutil.Popen([sys.executable, "-m", "longspan", *command])
    return psutil.Process(forked.fork(lambda: cli.main(command), out.with_name("told.txt")))


def wait_for_shards(process: psutil.Process, folder: Path, number: int) -> None:
    """Wait until there are as many shards."""
    until = time.monotonic() + 200
    while len(list(folder.glob("part-*.parquet"))) < number:
        assert process.status() != psutil.STATUS_ZOMBIE
        assert time.monotonic() < until
        time.sleep(0.01)


def writers(process: psutil.Process, name: str) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        try:
            if name in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def kill_all(process: psutil.Process, *others: psutil.Process) -> None:
    left = [*others, *(process.children(recursive=True) if process.is_running() else [])]
    for child in (process, *left):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def listening(process: psutil.Process) -> set[str]:
    """Addresses at which a process and its children accept connections."""
    found = set()
    for child in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            places = [each for each in child.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            found |= {each.laddr.ip.removeprefix("::ffff:") for each in places}
    return found


@pytest.fixture(scope="module")
def many(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A file of twelve shards, and the predictions of one process for it."""
    folder = tmp_path_factory.mktemp("many")
    source = write_rows(folder / "rows.csv", 24_000)
    return source, in_one_process(run, source, folder)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("engine_name", ["processes", "ray"])
def test_killed_workers_and_drivers_lose_and_double_no_row(
    engine_name: str, run: Path, many: tuple[Path, pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, worker = ["--jobs", "2"], "spawn_main"
    if engine_name == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install longspan[ray]")
        flags, worker = [*flags, "--ray"], "MapWorker"
    (source, whole), out = many, tmp_path / "out"
    process, children = start(run, source, out, *flags), list[psutil.Process]()
    try:
        wait_for_shards(process, out, 1)
        first = writers(process, worker)
        assert len(first) == 2
        assert listening(process) <= {"127.0.0.1", "::1"}, "nobody else on the network reaches it"
        first[0].kill()
        wait_for_shards(process, out, len(list(out.glob("part-*.parquet"))) + 2)
        children, left = process.children(recursive=True), writers(process, worker)
        process.kill()
        process.wait()
        # They end with it.
        assert not psutil.wait_procs(left, timeout=60)[1]
    finally:
        kill_all(process, *children)
    times = {path: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}
    assert 3 <= len(times) < 12
    listed = (out / MANIFEST).read_text(encoding="utf-8").splitlines(keepends=True)[1:]
    complete = [json.loads(line)["shard"] for line in listed if line.endswith("\n")]
    with monkeypatch.context() as patch:
        patch.setattr(shards, "by_processes", write_here)
        assert predict_shards(Predictor(run), [source], out) == {"shards": 12, "rows": 24_000, "errors": 240}
    for number in complete:
        path = out / shard_name(number)
        assert path.stat().st_mtime_ns == times[path]
    assert pq.read_table(out).equals(whole)
    assert not list(out.glob(".part-*"))
