"""Cores that this process may use: affinity, and quotas of control groups, which the tests write as files."""

import os
from pathlib import Path

import pytest

from longspan.machine import limits

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that control groups are read from; the process is in the group /jobs/mine of both versions."""
    own = tmp_path / "own"
    own.write_text("4:memory:/jobs/mine\n3:cpuset:/\n1:cpu,cpuacct:/jobs/mine\n0::/jobs/mine\n")
    monkeypatch.setattr(limits, "_OWN", own)
    monkeypatch.setattr(limits, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "groups"


def version_2(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)


def version_1(folder: Path, quota: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")


def test_without_control_groups_the_affinity_counts(groups: Path) -> None:
    assert limits.cores() == 8


@pytest.mark.parametrize(("text", "cores"), [("max 100000", 8), ("150000 100000", 2), ("110000 100000", 1)])
def test_quotas_of_version_2_are_rounded(groups: Path, text: str, cores: int) -> None:
    version_2(groups / "jobs/mine", text)
    assert limits.cores() == cores


def test_the_smallest_quota_of_all_groups_counts_and_one_core_is_the_least(groups: Path) -> None:
    version_2(groups / "jobs/mine", "500000 100000")
    version_2(groups / "jobs", "300000 100000")
    assert limits.cores() == 3
    version_1(groups / "cpu" / "jobs/mine", 20_000)
    assert limits.cores() == 1


def test_in_a_container_the_groups_root_is_its_own(groups: Path) -> None:
    version_1(groups / "cpu", 400_000)
    assert limits.cores() == 4


def test_no_quota_and_damaged_files_are_no_limit(groups: Path) -> None:
    version_1(groups / "cpu" / "jobs/mine", -1)
    version_2(groups / "jobs/mine", "what")
    version_2(groups / "jobs", "100000 0")
    assert limits.cores() == 8


def test_threads_follow_a_quota_unless_the_user_set_them(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits.limit_threads()
    # Affinities are known to the libraries themselves.
    assert "OMP_NUM_THREADS" not in os.environ
    version_2(groups / "jobs/mine", "200000 100000")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    limits.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "5"
    monkeypatch.delenv("OMP_NUM_THREADS")
    limits.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_affinities_of_this_machine_are_followed() -> None:
    assert 1 <= limits.cores() <= AFFINITY
