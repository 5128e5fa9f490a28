"""How many cores a process may use: affinity, quotas of control groups, the ranks beside it."""

import os

import pytest

from diagnose.model.launched import cores_of_rank, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Let the process have 16 cores, and its control groups be these files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))

    def made(groups, quotas):
        files = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in quotas.items()}
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("groups", "quotas", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/jobs/one\n", {"jobs/one/cpu.max": "max 100000\n", "jobs/cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("1:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 16),
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "6", "cpu,cpuacct/cpu.cfs_period_us": "1"}, 6),
        ("", {"cpu.max": "nonsense"}, 16),
    ],
)
def test_the_smallest_quota_counts(machine, groups, quotas, cores):
    assert usable_cores(machine(groups, quotas)) == cores


def test_ranks_share_the_cores_that_they_have_in_common(machine, monkeypatch):
    root = machine("0::/\n", {})
    assert [cores_of_rank(n, root) for n in (1, 4, 64)] == [16, 4, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4 if pid == 0 else 16)))
    assert cores_of_rank(4, root) == 4  # bound to them by what started it
