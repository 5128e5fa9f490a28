"""The partition: compute hides communication, both hide copies, the rest is idle."""

import pytest

from diagnose.model.intervals import total


def parts(r):
    p = r.tables().partition
    return tuple(round(share, 9) for share in (p.compute, p.exposed_communication, p.exposed_copy, p.idle))


@pytest.fixture
def r(recording):
    """Return a step of 1000 µs and nothing in it yet."""
    r = recording()
    r.step(1, 0, 1000)
    return r


def test_each_kind_alone(r):
    r.kernel("gemm", 0, 100)
    r.kernel("ncclDevKernel_AllReduce", 100, 300)
    r.copy("Memcpy HtoD (Pinned -> Device)", 300, 600)
    assert parts(r) == (0.1, 0.2, 0.3, 0.4)


def test_what_runs_beside_compute_is_hidden(r):
    r.kernel("gemm", 0, 500)
    r.kernel("ncclDevKernel_AllReduce", 100, 700, stream=20)
    r.copy("Memcpy HtoD (Pinned -> Device)", 200, 800, stream=30)
    assert parts(r) == (0.5, 0.2, 0.1, 0.2)


def test_kernels_side_by_side_count_once(r):
    r.kernel("gemm", 0, 500, stream=7)
    r.kernel("gemm", 200, 600, stream=9)
    assert parts(r) == (0.6, 0, 0, 0.4)


def test_tasks_are_cut_at_the_window(r):
    r.kernel("gemm", -500, 100)
    assert parts(r) == (0.1, 0, 0, 0.9)


def test_a_copy_within_the_device_is_work(r):
    r.copy("Memcpy DtoD (Device -> Device)", 0, 200)
    assert parts(r) == (0.2, 0, 0, 0.8)


def test_a_task_without_duration_covers_nothing(r):
    r.kernel("gemm", 500, 500)
    assert parts(r) == (0, 0, 0, 1)
    assert total(r.tables().occupancy.busy) == 0


def test_the_busiest_device_is_looked_at(r):
    r.kernel("gemm", 0, 100, device=3)
    r.kernel("gemm", 0, 200, device=5)
    assert r.tables().device_id == 5
    assert parts(r) == (0.2, 0, 0, 0.8)
