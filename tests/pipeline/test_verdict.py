"""The verdict: shallow, full, or deep with gaps."""

import pytest

from diagnose.model.diagnosis import Partition, Queue
from diagnose.pipeline.rank import verdict


def queue(idle, *, depth=50.0, late=0.0):
    return Queue(1 - idle, idle, 3.0, 9.0, idle, 100.0, late, 20_000, depth)


def answered(found, causes, *, communication=0.0):
    return verdict(found, Partition(1 - communication - found.idle_share, communication, 0.0, found.idle_share), causes)


@pytest.mark.parametrize(
    ("idle", "depth", "expected"),
    [
        (0.0, 1.0, "kernel-bound"),
        (0.17, 1.0, "kernel-bound"),
        (0.171, 1.0, "cpu-bound"),  # however small the idle share: the host has no lead
        (0.171, 9.0, "gaps"),
        (0.9, 9.0, "gaps"),
        (0.9, 8.0, "cpu-bound"),
    ],
)
def test_idle_first_then_the_depth_while_the_device_works(idle, depth, expected):
    assert answered(queue(idle, depth=depth), {"launch-bound": idle}) == expected


@pytest.mark.parametrize(
    ("idle", "late", "expected"),
    [(0.5, 1.0, "gaps"), (0.501, 0.49, "gaps"), (0.501, 0.5, "cpu-bound"), (1.0, 1.0, "cpu-bound")],
)
def test_without_linked_launches_pauses_stand_for_the_depth(idle, late, expected):
    assert answered(queue(idle, depth=None, late=late), {"launch-bound": idle}) == expected


@pytest.mark.parametrize(("communication", "expected"), [(0.4, "cpu-bound"), (0.41, "gaps")])
def test_a_device_that_waits_longer_for_other_ranks_is_not_limited_by_its_host(communication, expected):
    assert answered(queue(0.4, depth=2.0), {"launch-bound": 0.4}, communication=communication) == expected


@pytest.mark.parametrize(("cold", "expected"), [(0.299, "gaps"), (0.3, "cpu-bound")])
@pytest.mark.parametrize("rule", ["warm-up", "recompilation", "allocator-stall"])
def test_half_of_the_idle_in_a_cold_start_makes_the_host_the_limit(rule, cold, expected):
    assert answered(queue(0.6), {rule: cold, "launch-bound": 0.6 - cold}) == expected


def test_without_a_queue_there_is_no_gpu():
    assert verdict(None, None, {}) == "no-gpu"
