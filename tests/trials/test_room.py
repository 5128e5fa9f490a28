"""How many processes have room, by what the first two took."""

import sys
from types import SimpleNamespace

import pytest

from diagnose.trials.turn_process import available_bytes, room_for

GB = 1 << 30


def ready(host_gb, *free_gb):
    return [
        SimpleNamespace(device_free=None if free is None else free * GB, host_bytes=lambda: host_gb * GB)
        for free in free_gb
    ]


@pytest.mark.parametrize(
    ("processes", "available", "room"),
    [
        (ready(2, None, None), 21 * GB, 9),
        (ready(2, 60, 50), 100 * GB, 4),  # the second took ten of what the device had, and 45 of 50 may be used
        (ready(2, 60, 50), 5 * GB, 2),
        (ready(2, 60, 58), 100 * GB, 26),
        (ready(2, 9, 1), 100 * GB, 0),
        (ready(2, 60, 61), 21 * GB, 9),  # another program gave memory back: what a process takes is not known
        (ready(0, None, None), None, sys.maxsize),
    ],
)
def test_room_is_what_is_free_over_what_one_takes(processes, available, room):
    assert room_for(processes, available) == room


@pytest.mark.parametrize(("limit", "free_gb"), [("max", 8), (str(6 * GB), 5), (None, 8)])
def test_memory_of_a_container_is_bounded_by_its_limit(tmp_path, limit, free_gb):
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GB // 1024} kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{GB}\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == free_gb * GB
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None
