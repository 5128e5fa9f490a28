"""What loading processes read and compute, from counters of Linux that the test writes."""

import pytest

from diagnose.capture.record import loading as loading_counters
from diagnose.capture.record.loading import LoadingCounters


@pytest.fixture
def machine(tmp_path, monkeypatch):
    class Machine:
        now = 100.0

        def set(self, pid, *, disk=0, read=0, faults=0, user=0, system=0, swap_kb=0, io=True):
            folder = tmp_path / str(pid)
            folder.mkdir(exist_ok=True)
            fields = ["R", *"12345678", str(faults), "0", str(user), str(system), "0"]
            (folder / "stat").write_text(f"{pid} (python (x)) {' '.join(fields)}\n")
            (folder / "status").write_text(f"Name:\tpython\nVmSwap:\t{swap_kb} kB\n")
            if io:
                (folder / "io").write_text(f"rchar: {read}\nwchar: 1\nread_bytes: {disk}\n")

    machine = Machine()
    monkeypatch.setattr(loading_counters.time, "monotonic", lambda: machine.now)
    machine.counters = LoadingCounters(tmp_path)
    return machine


def test_two_workers_read_from_storage_and_decode(machine):
    machine.set(7)
    machine.set(8, disk=5_000_000)
    machine.counters.read([7, 8], batches=3)
    machine.now += 2
    machine.set(7, disk=4_000_000, read=30_000_000, faults=20, user=100, system=20)
    machine.set(8, disk=7_000_000, read=10_000_000, user=80, swap_kb=1000)
    machine.counters.read([7, 8], batches=13)
    assert machine.counters.summary(batch_size=20) == {
        "processes": 2, "cpu_share": 0.5,  # 2 s of CPU in 4 s of two lives
        "major_faults_per_s": 10, "swapped_mb": 1.024,
        "disk_mb_per_s": 3, "read_mb_per_s": 20, "cached_share": 0.85,  # 6 of 40 MB came from storage
        "user_ms_per_sample": 9, "system_ms_per_sample": 1,  # 1.8 s and 0.2 s for 200 samples
    }  # fmt: skip


def test_a_worker_that_has_ended_counts_to_its_last_reading(machine):
    machine.set(7)
    machine.counters.read([7, 9], batches=0)
    machine.now += 1
    machine.set(7, user=50)
    machine.counters.read([7], batches=1)
    machine.now += 1
    machine.set(8)
    machine.counters.read([8], batches=2)
    summary = machine.counters.summary(batch_size=10)
    assert (summary["processes"], summary["user_ms_per_sample"]) == (1, 25)


def test_what_a_container_does_not_show_is_left_out(machine):
    machine.set(7, io=False)
    machine.counters.read([7], batches=0)
    machine.now += 1
    machine.counters.read([7], batches=5)
    summary = machine.counters.summary(batch_size=None)
    assert set(summary) == {"processes", "cpu_share", "major_faults_per_s", "swapped_mb"}
    assert LoadingCounters().summary(4) == {}
