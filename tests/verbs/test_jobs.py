"""Processes of a comparison: side by side, and by a scheduler that stops and starts them."""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from longspan import UserError
from longspan.verbs.jobs import Launcher, shares_of_cores

#: A job that says where it runs. It waits for the other, so that both run at once, and fails where it is told to.
MEETS = """
import json, os, sys, time
from pathlib import Path
folder, other = map(Path, sys.argv[1:3])
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
folder.mkdir()
(folder / "found.json").write_text(json.dumps({"cores": cores, "threads": os.environ["OMP_NUM_THREADS"]}))
while not other.is_dir():
    time.sleep(0.01)
if folder.name == "b":
    sys.exit("longspan: no.")
"""
#: A job that a scheduler stops once: it ends when it is started again, and only then.
STOPS = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[1])
if "--resume" in sys.argv:
    (folder / "metrics.json").touch()
    sys.exit(int(sys.argv[2]))
folder.mkdir()
(folder / "recipe.toml").touch()
time.sleep(60)
"""
#: A scheduler: it stops each job once it has begun, as for one that is more urgent, and starts it again.
SCHEDULER = """
import os, signal, subprocess, sys, time
from pathlib import Path
script = Path(sys.argv[1])
Path("submitted").open("a").write(f"{script}\\n")
if os.fork():
    print("Submitted batch job 7")
    sys.exit()
os.setsid()
for name in (0, 1, 2):
    os.close(name)
    os.open(os.devnull, os.O_RDWR)
first = subprocess.Popen(["sh", str(script)], process_group=0)
while not script.with_suffix("").joinpath("recipe.toml").exists():
    time.sleep(0.01)
os.killpg(first.pid, signal.SIGTERM)
first.wait()
subprocess.run(["sh", str(script)])
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("meets", MEETS), ("stops", STOPS), ("scheduler", SCHEDULER)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_cores_are_dealt_out() -> None:
    for jobs in (1, 2, 3, 7):
        shares = shares_of_cores(jobs)
        assert len(shares) == jobs
        assert len({len(share) for share in shares}) == 1
        cores = {core for share in shares for core in share}
        assert jobs > len(cores) or sum(map(len, shares)) == len(cores)


def test_jobs_run_at_once_with_their_cores_and_say_how_they_ended(here: Path, capsys: Any) -> None:
    launcher = Launcher(2)
    pairs = [(here / "a", here / "b"), (here / "b", here / "a")]
    found = launcher.run_all([partial(launcher.run, pair[0], "meets", *map(str, pair)) for pair in pairs])
    assert found == [None, "the process ended with code 1: longspan: no."]
    assert "longspan: no." in (here / "b.log").read_text(encoding="utf-8")
    told = [json.loads((here / name / "found.json").read_text(encoding="utf-8")) for name in "ab"]
    shares = shares_of_cores(2)
    assert {one["threads"] for one in told} == {str(len(shares[0]))}
    if hasattr(os, "sched_getaffinity"):
        assert sorted(one["cores"] for one in told) == sorted(sorted(share) for share in shares)
    assert f"{here / 'a'}: done" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_a_scheduler_may_stop_a_job_and_start_it_again(code: int, here: Path, capsys: Any) -> None:
    launcher, folder = Launcher(submit=f"{sys.executable} -m scheduler"), here / "one run"
    works = [lambda: launcher.run(folder, "stops", str(folder), str(code), resume=["--resume"])]
    assert launcher.run_all(works) == [None if code == 0 else "the process ended with code 3"]
    assert (folder / "metrics.json").exists()
    assert "submitted, Submitted batch job 7" in capsys.readouterr().err
    assert (here / "submitted").read_text(encoding="utf-8").count("\n") == 1


def test_a_job_is_not_submitted_twice_and_its_end_is_found_later(here: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = here / "run"
    (here / "run.job").write_text("Submitted batch job 7", encoding="utf-8")
    launcher = Launcher(submit="false")
    threading.Timer(0.2, lambda: (here / "run.ended").write_text("0\n", encoding="utf-8")).start()
    assert launcher.run_all([lambda: launcher.run(folder, "stops")]) == [None]
    assert "waits for the job that was submitted before" in capsys.readouterr().err
    # Once it was collected, it would be submitted again.
    assert "false refused the job: the process ended with code 1" in str(launcher.run(folder, "stops"))
    assert "got 'nowhere' (No such file" in str(Launcher(submit="nowhere").run(folder, "stops"))


@pytest.mark.parametrize("left", ["folder gone", "folder made anew", "forgotten"])
def test_the_end_of_a_job_whose_folder_is_gone_is_not_believed(left: str, here: Path) -> None:
    (here / "run.job").write_text("Submitted batch job 7", encoding="utf-8")
    launcher = Launcher(submit="false")
    if left == "forgotten":
        launcher.forget(here / "run")
    else:
        (here / "run.ended").write_text("0\n", encoding="utf-8")
    if left == "folder made anew":
        (here / "run").mkdir()
    assert "false refused the job" in str(launcher.run(here / "run", "stops"))
    assert not (here / "run.job").exists()


def test_ctrl_c_does_not_end_a_command_that_hands_over_a_job(here: Path) -> None:
    code = "import os, pathlib; pathlib.Path('told').write_text(f'{os.getpgid(0)} {os.path.getsize(\"run.job\")}')"
    (here / "hands.py").write_text(f"{code}; raise SystemExit(1)", encoding="utf-8")
    launcher = Launcher(submit=f"{sys.executable} hands.py")
    assert "refused the job" in str(launcher.run(here / "run", "stops"))
    group, size = (here / "told").read_text(encoding="utf-8").split()
    # Were this process killed meanwhile, the job would not be submitted again.
    assert (int(group) != os.getpgid(0), size) == (True, "0")


def test_mistakes_are_one_sentence() -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"jobs": 0}, "expected at least one job at once, got 0"),
        ({"jobs": 2, "submit": "sbatch"}, "expected --jobs or --submit, got 2 and 'sbatch'"),
        ({"submit": "sbatch 'x"}, "expected a command to submit with"),
    ]
    for given, told in mistakes:
        with pytest.raises(UserError, match=told):
            Launcher(**given)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells processes of the end of another")
@pytest.mark.parametrize("jobs", [1, 2])
def test_processes_end_with_whoever_started_them(jobs: int, here: Path) -> None:
    works = f"[partial(launcher.run, Path(name), 'stops', name, '0') for name in ('a', 'b')[:{jobs}]]"
    text = f"from functools import *; from pathlib import *; launcher = Launcher({jobs}); launcher.run_all({works})"
    # As shells start what runs in the background.
    ignored = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if jobs == 2 else []
    driver = subprocess.Popen([*ignored, sys.executable, "-c", f"from longspan.verbs.jobs import Launcher; {text}"])
    children: list[psutil.Process] = []
    try:
        while sum((here / name / "recipe.toml").exists() for name in "ab") < jobs:
            assert driver.poll() is None
            time.sleep(0.01)
        children = psutil.Process(driver.pid).children(recursive=True)
        assert len(children) == jobs
    finally:
        driver.kill()
        driver.wait()
    assert not psutil.wait_procs(children, 20)[1]
