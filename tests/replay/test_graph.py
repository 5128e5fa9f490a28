"""Recordings of a few calls: what the graph replays, and what a change to it must do. Times in µs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.capture import Capture
from diagnose.model.events import Kind
from diagnose.model.intervals import span
from diagnose.pipeline.find import build_tables
from diagnose.replay import Edge, build, drop_waits, scale_host, scale_kernels, simulate, typical_delays
from tests.replay.graph_times import ends, marks


def two_steps(recording):
    """Each step: a 40 µs and b 20 µs one after the other, c 10 µs beside them, then a sync and 18 µs of Python."""
    r = recording()
    for step in range(2):
        at = 100 * step
        r.step(step + 1, at, at + 100)
        r.kernel("a", at + 20, at + 60, launched=(at + 10, at + 15))
        r.kernel("b", at + 60, at + 80, launched=(at + 20, at + 25))
        r.kernel("c", at + 36, at + 46, stream=8, launched=(at + 26, at + 28))
        r.runtime("cudaStreamSynchronize", at + 30, at + 82)
    return r.tables()


def test_unchanged_replay_is_what_was_measured(recording):
    t = two_steps(recording)
    graph = build(t)
    assert np.array_equal(simulate(graph).end, graph.end)
    assert marks(graph) == [100, 200]
    assert simulate(graph).window_ns == 200_000
    assert graph.dropped == 0


def test_every_edge_points_forward(recording):
    graph = build(two_steps(recording))
    assert (graph.src < graph.dst).all()


def test_a_longer_kernel_on_the_path_lengthens_each_step_by_as_much(recording):
    t = two_steps(recording)
    assert marks(scale_kernels(build(t), t.trace, "^a$", 2)) == [140, 280]


def test_a_longer_hidden_kernel_moves_no_step(recording):
    t = two_steps(recording)
    graph = scale_kernels(build(t), t.trace, "^c$", 2)
    assert ends(graph, "c", t) == [56, 156]
    assert marks(graph) == [100, 200]


def test_a_hidden_kernel_that_gets_long_enough_delays_nothing_but_its_own_stream(recording):
    t = two_steps(recording)
    graph = scale_kernels(build(t), t.trace, "^c$", 7)
    assert ends(graph, "c", t) == [106, 206]
    assert ends(graph, "a", t) == [60, 160]


def test_a_shorter_kernel_is_followed_until_the_launch_holds(recording):
    # Without a's 40 µs, b waits for its own launch at 20 and the usual 10 µs; the sync ends 2 µs after b.
    t = two_steps(recording)
    graph = scale_kernels(build(t), t.trace, "^a$", 0)
    assert ends(graph, "b", t) == [50, 120]
    assert marks(graph) == [70, 140]


def test_without_the_sync_the_host_runs_ahead(recording):
    # The calls cost nothing of their own: steps take the host 10 + 10 + 6 + 4 + 18 = 48 µs. The device then works
    # without a pause from 20 on: 2 x (40 + 20).
    t = two_steps(recording)
    calls = np.array([i for i in range(len(t.trace.events)) if t.name(i) == "cudaStreamSynchronize"])
    graph = drop_waits(build(t), calls)
    assert marks(graph) == [48, 96]
    assert ends(graph, "b", t) == [80, 140]
    assert simulate(graph).window_ns == 140_000


def test_a_sync_that_waited_for_nothing_keeps_its_own_time(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("a", 20, 30, launched=(10, 15))
    r.runtime("cudaDeviceSynchronize", 50, 57)
    t = r.tables()
    assert marks(scale_kernels(build(t), t.trace, "a", 2)) == [100]
    # 30 µs more: a ends at 60, and the call after it.
    assert marks(scale_kernels(build(t), t.trace, "a", 4)) == [103]


def test_a_call_that_ends_as_the_next_one_begins_comes_before_it(recording):
    r = recording()
    r.step(1, 0, 200)
    r.kernel("a", 20, 100, launched=(10, 15))
    r.copy("Memcpy HtoD (Pageable -> Device)", 100, 120, launched=(30, 120))
    r.runtime("cudaStreamSynchronize", 120, 125)
    r.kernel("b", 140, 200, launched=(130, 135))
    t = r.tables()
    graph = build(t)
    assert np.array_equal(simulate(graph).end, graph.end)
    assert ends(scale_kernels(graph, t.trace, "^a$", 0.5), "b", t) == [160]


def test_backward_thread_follows_the_forward_one_and_is_followed(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("f", 20, 24, launched=(10, 12))
    r.kernel("b", 50, 60, launched=(40, 42), thread="backward")
    r.runtime("cudaDeviceSynchronize", 45, 61)
    t = r.tables()
    graph = build(t)
    assert (graph.kind == Edge.HANDOFF).sum() == 2
    assert marks(graph) == [100]
    shorter = scale_host(graph, span(0, 10_000), 0)
    assert ends(shorter, "b", t) == [50]
    assert marks(shorter) == [90]


def test_threads_that_are_busy_at_the_same_time_do_not_follow_each_other(recording):
    r = recording()
    r.step(1, 0, 100)
    r.op("aten::work", 0, 90)
    r.op("aten::work", 0, 90, thread="other")
    r.kernel("f", 20, 24, launched=(10, 12))
    r.kernel("b", 50, 60, stream=8, launched=(40, 42), thread="other")
    assert not (build(r.tables()).kind == Edge.HANDOFF).any()


def test_one_launch_of_a_graph_carries_all_its_kernels(recording):
    r = recording()
    r.step(1, 0, 100)
    tasks = [r.kernel("k", s, e) for s, e in ((20, 30), (30, 40), (41, 50))]
    r.runtime("cudaGraphLaunch", 10, 15, launches=tasks)
    t = r.tables()
    graph = build(t)
    assert (graph.kind == Edge.LAUNCH).sum() == 3
    assert ends(graph, "k", t) == [30, 40, 50]
    assert ends(scale_kernels(graph, t.trace, "k", 2), "k", t) == [40, 60, 79]


def test_a_task_that_starts_when_another_stream_ends_is_inferred_to_wait_for_it(recording):
    r = recording()
    r.step(1, 0, 100)
    r.copy("Memcpy HtoD (Pinned -> Device)", 10, 50, stream=8, launched=(5, 7))
    r.kernel("x", 52, 60, launched=(8, 10))
    t = r.tables()
    graph = build(t)
    assert (graph.kind == Edge.INFERRED).sum() == 1
    assert ends(scale_kernels(graph, t.trace, "Memcpy", 2), "x", t) == [100]


def test_a_recorded_event_is_waited_for(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("p", 10, 50, stream=8, launched=(5, 7))
    record = r.runtime("cudaEventRecord", 8, 9)
    wait = r.runtime("cudaStreamWaitEvent", 10, 11)
    r._add(Kind.SYNC, "Stream Wait Event", 11, 11, stream=7, device=0).cause = wait
    r.kernel("x", 70, 80, launched=(12, 14))
    events = r.trace.events
    awaits = np.where(events.kind == Kind.SYNC, record.values["correlation"], -1)
    trace = replace(r.trace, events=replace(events, awaits=awaits))
    t = build_tables(Capture(trace), trace)
    graph = build(t)
    assert (graph.kind == Edge.EVENT).sum() == 1
    assert not (graph.kind == Edge.INFERRED).any()
    assert ends(scale_kernels(graph, t.trace, "p", 2), "x", t) == [120]


def test_tasks_without_a_launch_follow_their_stream(recording):
    r = recording()
    r.kernel("a", 0, 10)
    r.kernel("b", 12, 20)
    t = r.tables()
    assert ends(scale_kernels(build(t), t.trace, "a", 2), "b", t) == [30]


def test_a_task_that_starts_before_its_launch_is_replayed_all_the_same(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("a", 20, 30, launched=(25, 27))
    t = r.tables()
    graph = build(t)
    assert np.array_equal(simulate(graph).end, graph.end)


def test_without_a_device_the_steps_remain(recording):
    r = recording(devices=())
    r.step(1, 0, 100)
    r.step(2, 100, 250)
    r.op("aten::mm", 10, 90)
    graph = build(r.tables())
    assert marks(graph) == [100, 250]
    assert marks(scale_host(graph, span(0, 50_000), 0)) == [50, 200]


def test_usual_delays_replace_the_measured_ones(recording):
    r = recording()
    r.step(1, 0, 400)
    for at in range(0, 220, 20):
        start = at + (25 if at == 200 else 5)
        r.kernel("k", start, start + 2, launched=(at, at + 1))
    t = r.tables()
    assert ends(typical_delays(build(t)), "k", t) == [at + 7 for at in range(0, 220, 20)]


def test_a_usual_delay_is_that_of_the_other_calls_of_its_api(recording):
    r = recording()
    r.step(1, 0, 1000)
    for at in range(0, 100, 20):
        r.kernel("k", at + 5, at + 7, launched=(at, at + 1))
    for at, late in ((100, 30), (200, 30), (300, 30), (400, 30), (500, 80)):
        r.kernel("g", at + late, at + late + 2, launched=(at, at + 1), call="cudaGraphLaunch")
    t = r.tables()
    assert ends(typical_delays(build(t)), "g", t) == [at + 44.5 for at in (100, 200, 300, 400)] + [532]


def test_a_delay_that_is_alone_of_its_kind_stays_as_measured(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("k", 50, 60, launched=(0, 1))
    t = r.tables()
    assert ends(typical_delays(build(t)), "k", t) == [60]


def test_delays_in_whole_microseconds_add_up_to_what_was_measured(recording):
    r = recording()
    r.step(1, 0, 100)
    for i in range(20):
        r.kernel("k", 2 * i + 5 + i // 5 * 2, 2 * i + 7 + i // 5 * 2, launched=(0, 1))
    graph = build(r.tables())
    assert graph.delay[graph.kind == Edge.STREAM].max() == 2_000
    usual = typical_delays(graph).delay[graph.kind == Edge.STREAM]
    assert 0 < usual.sum() == pytest.approx(6_000, rel=0.4)


@pytest.mark.parametrize(("passed", "waits"), [(20, True), (30, False)])
def test_an_event_passes_on_within_25_us(recording, passed, waits):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("reduce", 50, 200, stream=9, launched=(0, 5))
    r.kernel("update", 200 + passed, 300, launched=(60, 65))
    assert (build(r.tables()).kind == Edge.INFERRED).sum() == waits


def test_nodes_of_a_graph_that_overlap_on_a_stream_follow_what_ended_before_them(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 10, 100, launched=(0, 5))
    r.kernel("b", 102, 200, launched=(0, 5))
    r.kernel("c", 150, 220, launched=(0, 5))
    t = r.tables()
    assert ends(scale_kernels(build(t), t.trace, "^a$", 0), "c", t) == [130]


def test_what_ran_without_a_launch_before_the_first_one_was_queued_before_the_recording(recording):
    r = recording()
    r.kernel("queued", 0, 50)
    r.kernel("queued", 50, 150)
    r.runtime("cudaDeviceSynchronize", 10, 152)
    r.kernel("own", 170, 200, launched=(160, 165))
    t = r.tables()
    assert ends(scale_kernels(build(t), t.trace, "queued", 0.5), "own", t) == [125]


def test_a_hundred_thousand_nodes_are_replayed(recording):
    t = two_steps(recording)
    graph = build(t)
    num = 100_000
    node = np.arange(num)
    src = np.concatenate([node[:-1], np.maximum(node[2:] - 2, 0)])
    dst = np.concatenate([node[1:], node[2:]])
    big = replace(
        graph,
        row=node,
        is_task=np.ones(num, bool),
        start=np.zeros(num, np.int64),
        duration=np.ones(num),
        src=src,
        dst=dst,
        kind=np.full(len(src), Edge.STREAM, np.int8),
        delay=np.zeros(len(src)),
    )
    assert simulate(big).window_ns == num - 1


def test_a_graph_with_other_edges_has_an_order_of_its_own(recording):
    t = two_steps(recording)
    graph = build(t)
    before = marks(graph)
    free = drop_waits(graph, t.calls(re.compile("Synchronize")))
    assert len(free.incoming().order) == len(graph.incoming().order) - 2
    assert marks(free)[-1] < before[-1]


def test_a_held_out_step_takes_its_delays_from_the_steps_before(recording):
    # Launch delays of 5 and 5 µs in the first step and 25 µs in the second: that one is predicted to end 20 µs earlier.
    r = recording()
    r.step(1, 0, 50)
    r.step(2, 50, 80)
    for launch, start in ((10, 15), (20, 25), (60, 85)):
        r.kernel("k", start, start + 2, launched=(launch, launch + 1))
    t = r.tables()
    assert ends(typical_delays(build(t), held_out_from=50_000), "k", t) == [17, 27, 67]
