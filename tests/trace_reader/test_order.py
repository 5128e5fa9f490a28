"""Sorting, ties, repeated events, and the join of device tasks to launches."""

from __future__ import annotations

from typing import Any

from diagnose.model.events import Trace


def op(name: str, ts: int, dur: int, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def call(name: str, ts: int, correlation: int, dur: int = 2) -> dict[str, Any]:
    return {**op(name, ts, dur, "cuda_runtime"), "args": {"correlation": correlation}}


def task(name: str, ts: int, correlation: int | None, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, **args} | ({} if correlation is None else {"correlation": correlation})
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 3, "args": args}


def names(trace: Trace) -> list[str]:
    return [trace.names[row] for row in trace.events.name]


def causes(trace: Trace) -> dict[str, str]:
    found = zip(names(trace), trace.events.cause.tolist(), strict=True)
    return {name: names(trace)[cause] if cause >= 0 else "" for name, cause in found if name.startswith("k")}


def test_sorted_by_start_with_the_longer_first(read_events):
    trace = read_events(op("late", 30, 1), op("child", 10, 5), op("parent", 10, 9))
    assert names(trace) == ["parent", "child", "late"]


def test_same_interval_runs_from_annotation_to_call(read_events):
    trace = read_events(
        op("call", 0, 4, "cuda_runtime"),
        op("op", 0, 4),
        op("frame", 0, 4, "python_function"),
        op("mark", 0, 4, "user_annotation"),
    )
    assert names(trace) == ["mark", "frame", "op", "call"]


def test_same_interval_keeps_the_order_of_a_file_that_lists_parents_first(read_events):
    trace = read_events(op("a", 0, 9), op("b", 1, 8), op("c", 1, 8), op("d", 2, 1))
    assert names(trace) == ["a", "b", "c", "d"]


def test_same_interval_is_reversed_in_a_file_that_lists_children_first(read_events):
    trace = read_events(op("d", 2, 1), op("c", 1, 8), op("b", 1, 8), op("a", 0, 9))
    assert names(trace) == ["a", "b", "c", "d"]


def test_tasks_find_their_launch(read_events):
    trace = read_events(
        call("launch1", 0, 5),
        call("launch2", 4, 6),
        task("k1", 10, 5),
        task("k2", 15, 6),
        task("k3", 20, 6),  # a graph: one launch, several tasks
        task("k4", 25, 99),  # queued before the window
        task("k5", 30, None),
        task("k6", 35, 0),
    )
    assert causes(trace) == {"k1": "launch1", "k2": "launch2", "k3": "launch2", "k4": "", "k5": "", "k6": ""}


def test_an_id_of_zero_joins_nothing(read_events):
    trace = read_events(call("cudaLaunchKernel", 0, 0), task("k", 10, 0))
    assert causes(trace) == {"k": ""}


def test_of_several_calls_with_one_id_the_launch_counts(read_events):
    trace = read_events(call("cudaStreamIsCapturing", 0, 5), call("cudaLaunchKernel", 4, 5), task("k", 10, 5))
    assert causes(trace) == {"k": "cudaLaunchKernel"}


def test_operators_are_not_joined(read_events):
    odd = {**op("aten::mm", 0, 1), "args": {"correlation": 5}}
    trace = read_events(odd, call("cudaLaunchKernel", 4, 5), task("k", 10, 5))
    assert trace.events.cause.tolist() == [-1, -1, 1]


def test_waits_are_joined_and_know_what_they_wait_for(read_events):
    wait = task("k", 10, 8, "cuda_sync", wait_on_cuda_event_record_corr_id=4)
    trace = read_events(call("cudaEventRecord", 0, 4), call("cudaStreamWaitEvent", 5, 8), wait)
    assert causes(trace) == {"k": "cudaStreamWaitEvent"}
    assert trace.events.awaits.tolist() == [-1, -1, 4]


def test_a_copy_takes_its_size_from_its_call_where_it_has_none(read_events):
    start = {**op("hipMemcpyAsync", 0, 2, "cuda_runtime"), "args": {"correlation": 5, "bytes": "616"}}
    trace = read_events(
        start, task("Memcpy HtoD", 9, 5, "gpu_memcpy"), task("Memcpy DtoD", 19, 6, "gpu_memcpy", bytes=7)
    )
    assert trace.events.size.tolist() == [-1, 616, 7]


def test_events_that_stand_there_twice_count_once(read_events):
    events = [call("cudaLaunchKernel", 0, 5), task("k", 10, 5), op("aten::mm", 0, 9)]
    trace = read_events(*events, *events)
    assert names(trace) == ["aten::mm", "cudaLaunchKernel", "k"]
    assert [note.text for note in trace.trust] == ["Counted once, but twice in the file: 3 events."]


def test_short_operators_of_one_microsecond_are_no_repetition(read_events):
    trace = read_events(op("aten::empty", 5, 0), op("aten::empty", 5, 0), call("cudaEventQuery", 7, 1, 0))
    assert len(trace.events) == 3
    assert not trace.trust


def external(name: str, ts: int, number: int, cat: str) -> dict[str, Any]:
    return {**op(name, ts, 2, cat), "args": {"External id": number, "device": 0, "stream": 7}}


def test_equal_external_ids_join_where_there_are_no_correlation_ids(read_events):
    calls = [external("hipLaunchKernel", 10 * i, i, "cuda_runtime") for i in (1, 2)]
    tasks = [external("gemm", 10 * i + 5, i, "kernel") for i in (1, 2)]
    events = read_events(*calls, *tasks).events
    assert events.cause.tolist() == [-1, 0, -1, 2]
    assert events.correlation.tolist() == [1, 1, 2, 2]


def test_an_external_id_that_launches_share_joins_nothing(read_events):
    shared = [external("hipLaunchKernel", ts, 1, "cuda_runtime") for ts in (10, 20)]
    assert read_events(*shared, external("gemm", 30, 1, "kernel")).events.cause.tolist() == [-1, -1, -1]


def test_external_ids_mean_nothing_beside_correlation_ids(read_events):
    linked = [call("hipLaunchKernel", 10, 1), task("gemm", 20, 1)]
    more = [external("hipLaunchKernel", 30, 7, "cuda_runtime"), external("gemm", 40, 7, "kernel")]
    assert read_events(*linked, *more).events.cause.tolist() == [-1, 0, -1, -1]
