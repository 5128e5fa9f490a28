"""What tasks wait for that no file records, and the pauses between them. Times in µs."""

import numpy as np
import pytest

from diagnose.replay import Edge, build, drop_waits, scale_kernels, simulate
from diagnose.replay.waits import MAX_AWAITED
from diagnose.tables.syncs import blocking_calls


def ends(graph, name, t):
    """Return when the tasks of a name end in a replay, µs."""
    rows = [i for i in range(len(graph)) if graph.is_task[i] and t.name(int(graph.row[i])) == name]
    return (simulate(graph).end[rows] / 1000).tolist()


def reducing(recording, *, early=False):
    """Two steps: the host reads a value to 50, launches a gradient of 20 and its reduction of 60, which follows."""
    r = recording()
    for at in (0, 150):
        r.step(at // 150 + 1, at, at + 150)
        r.kernel("forward", at + 5, at + 45, launched=(at, at + 2))
        r.runtime("cudaStreamSynchronize", at + 4, at + 50)
        r.kernel("gradient", at + 60, at + 80, launched=(at + 52, at + 55))
        begun = at + 70 if early else at + 80
        called = begun - 10, begun - 6
        r.kernel("ncclDevKernel_AllReduce", begun, begun + 60, stream=20, launched=called)
    return r.tables()


def test_a_reduction_follows_what_was_queued_before_it(recording):
    t = reducing(recording)
    graph = build(t)
    later = scale_kernels(drop_waits(graph, np.arange(len(t.trace.events.start))), t.trace, "^gradient$", 3)
    first = ends(later, "ncclDevKernel_AllReduce", t)[0]
    assert first == ends(later, "gradient", t)[0] + 60


def test_where_one_did_not_none_does(recording):
    assert not (build(reducing(recording, early=True)).kind == Edge.EVENT).any()


def test_pauses_that_bind_too_seldom_are_not_usual(recording):
    # Four launches take 20 us each, so their kernels wait for the host; one pause of 40 us on the stream binds.
    r = recording()
    r.step(1, 0, 300)
    r.kernel("first", 10, 20, launched=(0, 2))
    r.kernel("late", 60, 70, launched=(5, 8))
    for i in range(4):
        r.kernel("host", 110 + 50 * i, 115 + 50 * i, launched=(98 + 50 * i, 100 + 50 * i))
    graph = build(r.tables())
    stream = graph.kind == Edge.STREAM
    assert graph.delay[stream & graph.binding].tolist() == [40_000]
    assert graph.delay[stream & ~graph.binding].tolist() == [1500, 1500, 1500, 1500]  # what is usual elsewhere


def synchronizing(recording, num, call="cudaDeviceSynchronize"):
    """Launch a task on a stream of its own and wait for the device, again and again."""
    r = recording()
    r.step(1, 0, 20 * num)
    for i in range(num):
        at = 20 * i
        r.kernel("gemm", at + 3, at + 9, stream=i, launched=(at + 1, at + 2))
        r.runtime(call, at + 5, at + 12)
    return build(r.tables())


def waits(graph):
    """Return for each point how many tasks it waits for, in time order."""
    return np.bincount(graph.dst[graph.kind == Edge.WAIT])[1:].tolist()


def test_a_synchronization_of_the_device_waits_for_the_last_task_of_each_stream(recording):
    assert [num for num in waits(synchronizing(recording, 5)) if num] == [1, 2, 3, 4, 5]
    assert [num for num in waits(synchronizing(recording, 5, "cudaStreamSynchronize")) if num] == [1] * 5


def test_of_many_streams_for_those_that_end_last(recording):
    graph = synchronizing(recording, 300)
    assert sum(waits(graph)) <= MAX_AWAITED * 300
    last = graph.src[(graph.kind == Edge.WAIT) & (graph.dst == graph.dst[graph.kind == Edge.WAIT].max())]
    assert sorted(graph.end[last].tolist()) == [1000 * (20 * i + 9) for i in range(300 - MAX_AWAITED, 300)]


def staged(recording, *, returned, took=800, name="Memcpy HtoD (Pageable -> Device)"):
    """Four steps of 1000 µs, in which a copy waits for the product of the step before, and its call returns then."""
    r = recording()
    for at in range(0, 4000, 1000):
        r.step(at // 1000 + 1, at, at + 1000)
        r.copy(name, at + 90, at + 190, launched=(at, at + returned))
        r.op("aten::linear", at + 200, at + 990)
        r.kernel("gemm", at + 280, at + 280 + took, launched=(at + 270, at + 275))
    return r.tables()


def test_a_copy_in_parts_waits_for_the_stream_and_returns_while_its_last_part_moves(recording):
    """The call returns 40 µs before its copy ends: what was queued before it has ended."""
    t = staged(recording, returned=150)
    assert len(blocking_calls(t)) == 3  # before the first one nothing was queued
    graph = build(t)
    shorter = scale_kernels(graph, t.trace, "^gemm$", 0.95)
    saved = (simulate(graph).end[graph.marks] - simulate(shorter).end[graph.marks]) / 1000
    assert saved.tolist() == [0, 40, 80, 120]


@pytest.mark.parametrize(
    "options",
    [
        {"returned": 20},  # before the copy began
        {"returned": 150, "name": "Memcpy HtoD (Pinned -> Device)"},  # queued
        {"returned": 150, "took": 700},  # the device was done
    ],
)
def test_a_copy_call_that_waits_for_nothing(recording, options):
    assert len(blocking_calls(staged(recording, **options))) == 0


def test_a_kernel_that_begins_early_follows_the_one_before_it(recording):
    """It was launched to begin 3 µs before the first one ends."""
    r = recording()
    r.step(1, 0, 400)
    r.kernel("first", 10, 110, launched=(0, 2))
    r.kernel("second", 107, 207, launched=(5, 8))
    t = r.tables()
    graph = build(t)
    assert ends(graph, "second", t) == [207]
    assert ends(scale_kernels(graph, t.trace, "^first$", 0.5), "second", t) == [157]
