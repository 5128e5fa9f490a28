"""Categories, arguments and places of single events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from diagnose.model.events import Kind, Thread, Trace
from diagnose.trace_reader.schema import texts_of


def event(cat: str, name: str, ts: float = 0, dur: float = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": {}, **more}


def names(trace: Trace) -> list[str]:
    return [trace.names[row] for row in trace.events.name]


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", Kind.OP),
        ("Operator", Kind.OP),
        ("user_annotation", Kind.ANNOTATION),
        ("python_function", Kind.PYTHON),
        ("cuda_runtime", Kind.RUNTIME),
        ("cuda_driver", Kind.RUNTIME),
        ("Runtime", Kind.RUNTIME),
        ("mtia_runtime", Kind.RUNTIME),
        ("mlu_runtime", Kind.RUNTIME),
        ("kernel", Kind.KERNEL),
        ("Kernel", Kind.KERNEL),
        ("gpu_memcpy", Kind.MEMCPY),
        ("Memcpy", Kind.MEMCPY),
        ("gpu_memset", Kind.MEMSET),
        ("Memset", Kind.MEMSET),
        ("mlu_memcpy", Kind.MEMCPY),
        ("mlu_memset", Kind.MEMSET),
        ("cuda_sync", Kind.SYNC),
        ("overhead", Kind.OVERHEAD),
    ],
)
def test_old_and_new_categories(read_events, category, kind):
    assert read_events(event(category, "x")).events.kind.tolist() == [kind]


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "DistributedDataParallel.forward",
    ],
)
def test_annotations_that_old_exporters_call_operators(read_events, name):
    trace = read_events(event("Operator", name), event("Operator", "aten::add", 5))
    assert trace.events.kind.tolist() == [Kind.ANNOTATION, Kind.OP]


def test_a_run_of_the_garbage_collector(read_events):
    trace = read_events(event("python_function", "Python GC"), event("python_function", "a.py(1): f", 5))
    assert trace.events.kind.tolist() == [Kind.GC, Kind.PYTHON]


def test_copies_spans_and_arrows_are_no_rows(read_events):
    trace = read_events(
        event("cpu_op", "aten::add"),
        event("gpu_user_annotation", "ProfilerStep#1"),
        event("mlu_user_annotation", "ProfilerStep#1"),
        event("Trace", "PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler"),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 2, "ts": 0},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9},
    )
    assert names(trace) == ["aten::add"]
    assert not trace.trust


def test_the_driver_of_an_mlu_launches_what_a_library_called_for(read_events):
    trace = read_events(
        event("mlu_runtime", "cnnlMultiTensorScale", 0, 35, args={"correlation": 4625}),
        event("mlu_runtime", "cnInvokeKernel", 16, 14, args={"correlation": 4625}),
        event("kernel", "MLUMultiTensorScale", 50, 20, args={"correlation": 4625, "device": 0, "stream": 3}),
    )
    assert trace.events.cause.tolist() == [-1, -1, 1]


def test_unknown_categories_are_counted_in_a_note(read_events):
    trace = read_events(
        event("cpu_op", "a"), event("mtia_ccp_events", "dma_request"), event("cuda_profiler_range", "r")
    )
    assert len(trace.events) == 1
    assert [note.text for note in trace.trust] == [
        "Left out: 1 event of the category 'cuda_profiler_range'.",
        "Left out: 1 event of the category 'mtia_ccp_events'.",
    ]


@pytest.mark.parametrize("category", [{"cat": "cpu_instant_event"}, {}])
def test_allocations_with_and_without_a_category(read_events, category):
    def memory(ts: int, **args: int) -> dict[str, Any]:
        return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": ts, "args": args, **category}

    events = read_events(
        memory(1, **{"Bytes": 512, "Device Type": 1, "Device Id": 3}),
        memory(2, **{"Bytes": -512, "Device Type": 0, "Device Id": -1}),
    ).events
    assert events.kind.tolist() == [Kind.MEMORY, Kind.MEMORY]
    assert events.size.tolist() == [512, -512]
    assert events.device.tolist() == [3, -1]
    assert (events.end == events.start).all()


def test_threads_once_though_their_ids_are_numbers_and_text(read_events):
    trace = read_events(
        event("cpu_op", "a", 0, tid=2),
        event("cpu_op", "b", 1, tid="2"),
        event("cpu_op", "c", 2, tid=9),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": "9", "ts": 0, "args": {"name": "thread 9 (python) "}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}},
    )
    assert trace.events.thread.tolist() == [0, 0, 1]
    assert trace.threads == (Thread("1", "2"), Thread("1", "9", "thread 9 (python)"))


def test_the_profilers_own_work_belongs_to_no_thread(read_events):
    trace = read_events(event("overhead", "Activity Buffer Request", pid=-1, tid=0), event("cpu_op", "a", 5))
    assert trace.events.thread.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("where", "device", "stream"),
    [
        ({"pid": 9, "tid": 9, "args": {"device": 3, "stream": 20}}, 3, 20),
        ({"pid": 1, "tid": "stream 7"}, 1, 7),
        ({"pid": "2", "tid": 0}, 2, 0),
        ({"pid": 0, "tid": 1, "args": {"device": "4", "stream": "5"}}, 4, 5),
        ({"pid": 0, "tid": 1, "args": {"device": 0, "stream": 4294967295}}, 0, -1),
        ({"pid": 4157758, "tid": 1, "args": {"stream": 3}}, -1, 3),
    ],
)
def test_device_and_stream(read_events, where, device, stream):
    events = read_events(event("kernel", "k", **where)).events
    assert (events.device.tolist(), events.stream.tolist(), events.thread.tolist()) == ([device], [stream], [-1])


def test_shapes_and_types_are_one_text_however_they_are_laid_out(read_text):
    head = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1, '
    trace = read_text(
        "[" + head + '"ts": 1, "args": {"Input Dims": [[2, 3], []], "Input type": ["float", ""]}},'
        "" + head + '"ts": 2, "args": {"Input Dims": [\n[\n2,\n3\n],[]], "Input type": ["float",""]}},'
        "" + head + '"ts": 3, "args": {}}]'
    )
    shapes, types = trace.events.shapes, trace.events.types
    assert shapes[0] == shapes[1]
    assert trace.names[shapes[0]] == "[[2, 3], []]"
    assert trace.names[types[1]] == '["float", ""]'
    assert (shapes[2], types[2]) == (-1, -1)


def test_sequence_numbers_and_call_stacks(read_events):
    args = {"Sequence number": 77, "Call stack": "b.py(2): g;a.py(1): f"}
    trace = read_events(event("Operator", "aten::mm", args=args), event("Operator", "aten::t", 5))
    assert trace.events.sequence.tolist() == [77, -1]
    assert trace.names[trace.events.detail[0]] == "b.py(2): g;a.py(1): f"
    assert trace.events.detail[1] == -1


def test_collectives(read_events):
    args = {"device": 0, "stream": 4, "Collective name": "allreduce", "dtype": "Float", "Group size": 8}
    group = {"Process Group Name": "7", "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, 2, 3]"}
    more = {"In msg nelems": 640, "Out msg nelems": 80, "Seq": 12, **group}
    trace = read_events(event("kernel", "ncclDevKernel", args={**args, **more}), event("kernel", "k", 5))
    assert trace.names[trace.events.detail[0]] == "allreduce|Float|8|80|-1|-1|7|mesh_tp|0,1,2,3"
    assert trace.events.sequence.tolist() == [12, -1]
    assert trace.events.size.tolist() == [640, -1]


def test_an_event_with_one_odd_field_keeps_its_group_and_its_values(read_events):
    args = {"device": 0, "correlation": [7], "Collective name": "send", "dtype": "Float", "Group size": 4}
    group = {"Process Group Name": "7", "Process Group Description": "mesh_pp", "Process Group Ranks": "[0, 4, 8, 12]"}
    more = {"In msg nelems": 640, "Out msg nelems": 80, "Seq": 12, "Src Rank": 4, "Dst Rank": 8, **group}
    trace = read_events(
        event("kernel", "ncclDevKernel", args={**args, **more}),
        event("cpu_op", "aten::add", 5, args={"Sequence number": [7], "Concrete Inputs": ["", "1"]}),
    )
    assert trace.names[trace.events.detail[0]] == "send|Float|4|80|4|8|7|mesh_pp|0,4,8,12"
    assert trace.events.sequence.tolist() == [12, -1]
    assert trace.names[trace.events.values[1]] == '["", "1"]'


def test_grid_is_the_number_of_blocks(read_events):
    trace = read_events(
        event("kernel", "k", 0, args={"grid": [12, 3, 2]}),
        event("kernel", "k", 1, args={"grid": "grid(4096,)"}),
        event("kernel", "k", 2),
    )
    assert trace.events.grid.tolist() == [72, -1, -1]


def test_numbers_written_as_text(read_events):
    trace = read_events(event("gpu_memcpy", "Memcpy", args={"bytes": "616", "correlation": "12", "device": 0}))
    assert trace.events.size.tolist() == [616]
    assert trace.events.correlation.tolist() == [12]


def test_what_is_larger_than_its_column_is_unknown(read_events):
    trace = read_events(event("gpu_memcpy", "Memcpy", args={"bytes": 2**64 - 1, "device": 0, "correlation": 5}))
    assert (trace.events.size.tolist(), trace.events.correlation.tolist()) == ([-1], [5])


def test_unused_columns_take_no_memory(read_events):
    events = read_events(event("cpu_op", "a"), event("cpu_op", "b")).events
    assert events.awaits.strides == (0,)
    assert events.awaits.tolist() == [-1, -1]


def test_a_null_byte_within_a_text_parts_none_from_its_event():
    raws = [Raw(b'["a\0b"]'), Raw(b""), Raw(b"[[2]]")]
    assert texts_of(raws) == [b'["a\0b"]', b"", b"[[2]]"]


def test_a_number_too_large_for_its_column_is_unknown_and_the_others_stay(read_events):
    far, near = (event("cpu_op", "a", at, args={"Sequence number": n}) for at, n in ((0, 2**70), (2, 7)))
    assert read_events(far, near).events.sequence.tolist() == [-1, 7]
