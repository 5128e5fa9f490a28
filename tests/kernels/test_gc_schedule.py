import gc
import weakref

import pytest

from diagnose.kernels.gc_schedule import scheduled_gc


class Node:
    """Something that can be in a cycle and watched."""


def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)


@pytest.fixture(autouse=True)
def collector():
    """Begin with a running collector and nothing frozen, and leave it so."""
    assert gc.isenabled()
    gc.unfreeze()
    yield
    assert gc.isenabled(), "a test left the collector off"
    assert gc.get_freeze_count() == 0, "a test left objects frozen"
    gc.freeze()  # as conftest.py has it for the tests that follow


def test_collects_on_schedule_only():
    with scheduled_gc(every=4, warm_up=2) as collect:
        assert not gc.isenabled()
        assert [collect.step() for _ in range(11)] == [False, True, *[False] * 3, True, *[False] * 3, True, False]
        assert collect.collections == 3
        assert collect.seconds > 0


def test_garbage_waits_for_the_schedule_and_then_goes():
    with scheduled_gc(every=2, warm_up=0) as collect:
        dead = cycle()
        assert not collect.step()
        assert dead() is not None
        assert collect.step()
        assert dead() is None


def test_what_lives_is_frozen_after_the_warm_up_only():
    with scheduled_gc(warm_up=2) as collect:
        collect.step()
        assert gc.get_freeze_count() == 0
        early = cycle()
        collect.step()
        assert early() is None, "garbage of the warm-up was frozen instead of collected"
        assert gc.get_freeze_count() > 1000
        collect.collect()
        assert gc.get_freeze_count() > 1000


def test_a_collection_goes_over_what_is_not_frozen_only():
    heap = [[i] for i in range(20_000)]
    with scheduled_gc(every=1, warm_up=0) as collect:
        collect.step()
        assert len(gc.get_objects()) < 20_000  # frozen objects are not among them
    assert len(heap) == 20_000


@pytest.mark.timing
def test_frozen_heap_makes_collections_cheap():
    heap = [[i] for i in range(200_000)]
    start = gc.get_stats()[2]["collections"]
    with scheduled_gc(every=1, warm_up=0) as collect:
        first = collect.seconds
        for _ in range(5):
            collect.step()
        assert (collect.seconds - first) / 5 < first / 5
    assert gc.get_stats()[2]["collections"] == start + 6
    assert len(heap) == 200_000


def test_too_many_new_objects_bring_the_collection_forward():
    with scheduled_gc(every=1000, warm_up=0, max_young=50_000) as collect:
        collect.step()
        assert collect.collections == 1
        young = [[i] for i in range(60_000)]
        assert collect.step()
        assert not collect.step()
    assert young


def test_everything_is_restored_after_an_exception():
    with pytest.raises(KeyError), scheduled_gc(warm_up=0):
        raise KeyError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with scheduled_gc(), scheduled_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_that_the_script_froze_stay_frozen():
    gc.freeze()
    with scheduled_gc(warm_up=0):
        pass
    assert gc.get_freeze_count() > 1000
    gc.unfreeze()


@pytest.mark.parametrize("wrong", [{"every": 0}, {"warm_up": -1}, {"max_young": 0}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="scheduled_gc needs every >= 1"), scheduled_gc(**wrong):
        pass
    with scheduled_gc(every=1, max_young=1, warm_up=0) as schedule:  # the least of each
        assert schedule.step()
