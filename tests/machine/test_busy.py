"""Busy machines: when one counts as busy, what the user is told, and that idle threads change no result."""

import os
import subprocess
import sys
from itertools import count

import pytest

from longspan.machine import busy

LINUX = pytest.mark.skipif(busy.waited() is None, reason="the kernel does not count how long threads wait for cores")


def test_a_machine_is_busy_from_the_first_long_wait_until_ten_short_ones() -> None:
    load = busy.Load()
    load.count(0.01, 0.1)
    assert not load.busy
    load.count(0.05, 0.1)
    assert load.busy
    for _ in range(busy.QUIET - 1):
        load.count(0.0, 0.1)
        assert load.busy
    load.count(0.0, 0.1)
    assert not load.busy


def test_users_are_told_of_long_waits_only() -> None:
    load = busy.Load()
    for _ in range(100):
        load.count(0.05, 0.1)
    for _ in range(400):
        load.count(0.0, 0.1)
    assert not load.noted
    for _ in range(300):
        load.count(0.05, 0.1)
    assert load.noted


def test_a_busy_machine_is_noted_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    waits = count(step=10.0)
    monkeypatch.setattr(busy, "waited", lambda: next(waits))
    monkeypatch.setattr(busy, "EVERY", 0.001)
    monkeypatch.setattr(busy, "NOTED_SECONDS", 0.002)
    lent = []
    monkeypatch.setattr(busy.IdleThreads, "lend", lambda self, wanted: lent.append(wanted))
    with busy.watch():
        while len(lent) < 50:
            pass
    assert capfd.readouterr().err.count("this machine is busy") == 1
    assert lent[0]
    assert not lent[-1]


def test_where_waits_are_not_counted_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "waited", lambda: None)
    before = busy.threading.active_count()
    with busy.watch():
        assert busy.threading.active_count() == before


RESULTS = """
import os, threading, time, torch
from longspan.machine.busy import IdleThreads

def threads():
    return len(os.listdir("/proc/self/task"))

def results():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
    layer(torch.randn(512, 64)).square().sum().backward()
    return [parameter.grad for parameter in layer.parameters()]

def settled(wanted):
    for _ in range(1000):
        if threads() == wanted:
            break
        time.sleep(0.01)
    return threads()

alone, before = results(), threads()
idle = IdleThreads()
idle.lend(True)
idle.lend(True)
print(settled(before + EXTRA) - before)
print(all(map(torch.equal, alone, results())))
idle.lend(False)
print(settled(before) - before)
"""


@LINUX
@pytest.mark.parametrize(
    ("user", "extra"), [({}, 2), ({"GOMP_SPINCOUNT": "10"}, 0), ({"OMP_WAIT_POLICY": "ACTIVE"}, 0)]
)
def test_idle_threads_come_and_go_and_change_no_result(user: dict[str, str], extra: int) -> None:
    # As many threads as cores: then two more threads are enough, one of which waits in Python.
    cores = str(busy.cores())
    plain = {name: value for name, value in os.environ.items() if name not in busy.POLICIES}
    code = RESULTS.replace("EXTRA", str(extra))
    ended = subprocess.run(
        [sys.executable, "-c", code], env=plain | {"OMP_NUM_THREADS": cores} | user, stdout=subprocess.PIPE, text=True
    )
    assert ended.stdout.split() == [str(extra), "True", "0"]


@LINUX
def test_importing_the_library_changes_no_setting_of_threads() -> None:
    code = (
        "import os, threading\n"
        "def settings(): return {key: value for key, value in os.environ.items() if key.split('_')[0] in NAMES}\n"
        "NAMES, before = ('OMP', 'GOMP', 'KMP', 'MKL', 'NUMBA'), None\n"
        "before = settings()\n"
        "import longspan.models\n"
        "assert settings() == before and threading.active_count() == 1"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
