"""A folder is held by one process at a time, and by none that has ended."""

import os
import signal
import time
from pathlib import Path

import forked
import pytest

from longspan.errors import UserError
from longspan.machine import locks


def test_a_second_holder_is_told_of_the_first(tmp_path: Path) -> None:
    with (
        locks.lock_folder(tmp_path, "a training run"),
        pytest.raises(UserError, match=rf"process {os.getpid()}, started \d{{4}}-.*; wait for it") as error,
        locks.lock_folder(tmp_path, "a training run"),
    ):
        pass
    assert "\n" not in str(error.value)
    # Nothing is left of it.
    assert not list(tmp_path.iterdir())
    with locks.lock_folder(tmp_path, "a training run"):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()

    def work() -> int:
        with locks.lock_folder(folder, "a training run"):
            (tmp_path / "ready").touch()
            time.sleep(60)
        return 0

    child = forked.fork(work, tmp_path / "told.txt")
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    with pytest.raises(UserError, match=f"process {child}, "), locks.lock_folder(folder, "a training run"):
        pass
    os.kill(child, signal.SIGKILL)
    assert forked.ended(child) == -signal.SIGKILL
    with locks.lock_folder(folder, "a training run"):
        pass


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    (tmp_path / locks.FILE).symlink_to(notes)
    with pytest.raises(UserError, match="got a link; remove it"), locks.lock_folder(tmp_path, "a training run"):
        pass
    with pytest.raises(UserError, match="got a link; remove it"):
        locks.wait_until_free(tmp_path, "a training run", lambda: False)
    assert notes.read_text() == "mine"


def test_waiting_for_a_holder_ends_when_it_is_stopped(tmp_path: Path) -> None:
    looks = iter([False, True])
    with locks.lock_folder(tmp_path, "a training run"), pytest.raises(KeyboardInterrupt):
        locks.wait_until_free(tmp_path, "a training run", lambda: next(looks))
