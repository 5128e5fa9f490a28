"""The caching allocator's counters, through a stand-in for torch.cuda."""

import sys
from types import SimpleNamespace

import pytest

from diagnose.capture.record.gpus import allocator_counters, allocator_map, counted_between


def cuda(stats, *, used=True):
    def told():
        if isinstance(stats, Exception):
            raise stats
        return stats

    here = SimpleNamespace(is_initialized=lambda: used, memory_stats=told, mem_get_info=lambda: (4, 10))
    return SimpleNamespace(cuda=here)


def test_what_is_counted(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", cuda({"num_alloc_retries": 3, "reserved_bytes.all.peak": 7, "else": 1}))
    assert allocator_counters() == {
        "retries": 3, "reserved_peak_bytes": 7, "free_bytes": 4, "capacity_bytes": 10,
    }  # fmt: skip


@pytest.mark.parametrize("torch", [cuda({}, used=False), cuda({}), cuda(RuntimeError("another allocator"))])
def test_where_nothing_is_counted(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert allocator_counters() == {}


def test_only_what_grows_is_a_difference():
    before, after = {"retries": 3, "reserved_bytes": 5}, {"retries": 4, "reserved_bytes": 6}
    assert counted_between(before, after) == {"retries": 1, "reserved_bytes": 6}


def snapshot(*segments, device=0):
    blocks = [[{"size": size, "state": state} for size, state in blocks] for blocks in segments]
    return [{"device": device, "blocks": each} for each in blocks]


def with_snapshot(told, *, used=True):
    here = SimpleNamespace(is_initialized=lambda: used, current_device=lambda: 0, memory_snapshot=lambda: told)
    return SimpleNamespace(cuda=here)


def test_the_map_of_free_memory(monkeypatch):
    held, free, waiting = "active_allocated", "inactive", "active_awaiting_free"
    mine = snapshot([(60, held), (30, free), (10, waiting)], [(50, free)], [(20, held), (5, free)])
    monkeypatch.setitem(sys.modules, "torch", with_snapshot([*mine, *snapshot([(900, free)], device=1)]))
    assert allocator_map() == {"segments": 3, "free_pieces_bytes": 85, "largest_free_piece_bytes": 50}


@pytest.mark.parametrize("torch", [with_snapshot([]), with_snapshot([], used=False), with_snapshot([{"other": 1}])])
def test_where_there_is_no_map(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert allocator_map() == {}
