"""What cannot be is left out or replaced, and named; everything read keeps the guarantees (the fixtures check them)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from diagnose.errors import InputError
from diagnose.model.capture import Capture
from diagnose.model.events import step_number
from diagnose.pipeline.run import analyze_rank
from diagnose.tables.steps import find_steps
from tests.trace_reader.guarantees import check_trace

HOUR_US = 3.6e9
YEAR_US = 3.15e13


def event(name="aten::mm", ts=0.0, dur=5.0, **fields):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}, **fields}


def mark(number, ts, dur=1000.0, **fields):
    return event(f"ProfilerStep#{number}", ts, dur, cat="user_annotation", **fields)


def texts(trace):
    return [note.text for note in trace.trust]


NO_TIME = "Left out, since their time is missing, no number or out of range: 1 event."


NO_NUMBERS = ["null", "true", "[]", "{}", "NaN", "-Infinity", '"soon"', '""', '"nan"', '"inf"']
TOO_LARGE = ["1e400", "1e300", "9223372036854775808", "-1e18", "1" * 5000, "9300000000000000"]


@pytest.mark.parametrize("ts", NO_NUMBERS + TOO_LARGE)
@pytest.mark.parametrize("clock", [0, 1_700_000_000_000_000.125])
def test_an_event_without_a_usable_time_is_left_out(read_text, clock, ts):
    good = [json.dumps(event(ts=clock + at)) for at in (10.0, 20.0)]
    odd = json.dumps(event("odd", "TIME")).replace('"TIME"', ts)
    trace = read_text(f"[{good[0]}, {odd}, {good[1]}]")
    assert trace.events.start.tolist() == [0, 10_000]
    assert texts(trace) == [NO_TIME]


def test_an_event_with_no_time_at_all_is_left_out(read_events):
    odd = event("odd")
    del odd["ts"]
    trace = read_events(event(ts=10.0), odd, event(ts=20.0))
    assert trace.events.start.tolist() == [0, 10_000]
    assert texts(trace) == [NO_TIME]


@pytest.mark.parametrize("dur", ["-5", "true", '"long"', '"nan"', "1e400", "[]"])
def test_a_duration_that_is_none_counts_as_zero(read_text, dur):
    odd = json.dumps(event("odd", 20.0, "TIME")).replace('"TIME"', dur)
    trace = read_text(f"[{json.dumps(event(ts=10.0))}, {odd}]")
    assert (trace.events.end - trace.events.start).tolist() == [5000, 0]
    assert texts(trace) == ["With a duration that is negative or no number, taken as zero: 1 event."]


@pytest.mark.parametrize(
    "odd", [event("odd", 0.0, HOUR_US), event("odd", YEAR_US), event("odd", -YEAR_US), event("odd", 0.0, 1e30)]
)
def test_an_event_apart_from_the_rest_is_named_and_left_out(read_events, odd):
    trace = read_events(event(ts=10.0), odd, event(ts=20.0))
    assert trace.events.start.tolist() == [0, 10_000]
    assert texts(trace) == [
        "Left out, since they start or end more than 30 minutes away from all others: 1 event ('odd')."
    ]


def test_a_long_event_with_others_after_it_stays(read_events):
    half = HOUR_US / 2
    trace = read_events(event("main", 0.0, HOUR_US), *(event(ts=at) for at in (0.0, half, 2 * half)))
    assert len(trace.events) == 4
    assert trace.trust == ()


def test_without_a_plausible_time_the_file_is_refused(read_events):
    with pytest.raises(InputError, match="no event with a plausible time among its 2 events"):
        read_events(event(ts=None), event(ts=None))


@pytest.mark.parametrize("ids", [{"pid": None}, {"pid": -1}, {"pid": 1.5}, {"pid": [1]}])
def test_host_events_without_a_thread_are_on_one(read_events, ids):
    trace = read_events(event(ts=0.0, **ids), event(ts=10.0, **ids))
    assert trace.events.thread.tolist() == [0, 0]
    assert texts(trace) == ["Without a thread in the file, and taken to be on one: 2 events of the host."]
    assert analyze_rank(Capture(trace)).verdict == "no-gpu"


@pytest.mark.parametrize(
    "bad",
    [
        mark(7, 1500.0, 0.0),  # no length
        mark(1, 1000.0, 1000.0, tid="1"),  # a copy
        mark(9, 1200.0, 300.0),  # inside another
        mark(9, 0.0, 9000.0),  # over all others
        mark("9" * 19, 5000.0),
        mark("9" * 5000, 5000.0),
        mark("\u0663", 5000.0),
    ],
)
def test_step_marks_that_cannot_be_steps_are_left_out(read_events, bad):
    trace = read_events(*(mark(n, 1000.0 * n) for n in range(4)), bad)
    steps = find_steps(trace)
    assert steps.number.tolist() == [0, 1, 2, 3]
    assert (steps.end - steps.start).tolist() == [1_000_000] * 4
    assert texts(trace) == ["Left out, since no step can begin or end there: 1 step mark."]


def test_the_number_of_a_step_mark():
    names = ("ProfilerStep#12", "ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#x", "step#1")
    assert [step_number(name) for name in names] == [12, None, None, None, None]


def test_a_task_far_behind_the_steps_does_not_turn_the_window_around(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("early", -200, -100, launched=(10, 20))  # ended before its launch: clocks disagree
    r.kernel("late", 5000, 5000, launched=(2000, 2010))
    window = find_steps(r.trace).window
    assert window == (0, 1_000_000)


def test_sizes_that_no_memory_has_are_unknown(read_events):
    copy = event("Memcpy", 0.0, cat="gpu_memcpy", args={"bytes": 2**62})
    release = event(
        "[memory]", 1.0, ph="i", cat="cpu_instant_event", args={"Bytes": -(2**62), "Total Allocated": 2**61}
    )
    trace = read_events(copy, release)
    assert trace.events.size.tolist() == [-1, -1]
    assert trace.events.sequence[1] == -1


@pytest.mark.parametrize(
    "huge", [[[2**40, 2**40]], [[10**30]], [[[2**40]] * 2000], [[8] * 3000], [[10**3000]], [[3, 4], [2**25, 2**26]]]
)
def test_shapes_that_no_memory_holds_are_left_out_and_named_once(read_events, huge):
    good = [[64, 128], [128]]
    events = [event(ts=10.0 * n, args={"Input Dims": dims}) for n, dims in enumerate((good, huge, good, huge))]
    trace = read_events(*events)
    assert [n >= 0 for n in trace.events.shapes.tolist()] == [True, False, True, False]
    assert texts(trace) == ["Left out, since no memory holds tensors of such a size: the shapes of 2 events."]


@pytest.mark.parametrize("dims", [[[2**49]], [[0, 10**14]], [[1, 2**25, 2**24], []], [[7] * 17]])
def test_large_shapes_that_a_memory_could_hold_stay(read_events, dims):
    trace = read_events(event(args={"Input Dims": dims}))
    assert trace.names[trace.events.shapes[0]] == json.dumps(dims)
    assert trace.trust == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"a\u0000b", "a\ufffdb"),
        (r"\u001b[31mred", "\ufffd[31mred"),
        (r"\u202eabc", "\ufffdabc"),
        (r"\ud800", "\ufffd"),
        (r"a\nb", "a\nb"),
        ("naïve ✓", "naïve ✓"),
    ],
)
def test_names_that_cannot_be_shown(read_text, text, shown):
    trace = read_text('[{"ph":"X","cat":"cpu_op","name":"' + text + '","pid":1,"tid":1,"ts":1,"dur":2}]')
    assert trace.names == (shown,)


@pytest.mark.parametrize("odd", [-5, "three", 10**12, None, [], 1e400, True])
def test_odd_ranks_and_clocks(read_events, odd):
    info = {"rank": odd, "world_size": odd}
    trace = read_events(event(), distributedInfo=info, baseTimeNanoseconds=10**30, deviceProperties=[{"id": odd}, odd])
    assert (trace.rank, trace.world_size, trace.epoch_ns) == (0, 1, 0)


def test_phases_and_categories_that_are_not_read_are_named_and_few(read_events):
    odd = [event(cat=f"mine{n}") for n in range(20)]
    trace = read_events(event(), event(ph="B"), event(ph="E"), event(ph="E"), *odd)
    assert len(trace.events) == 1
    assert texts(trace) == [
        *(f"Left out: 1 event of the category 'mine{n}'." for n in range(5)),
        "Left out: 15 events of the 15 other kinds of category.",
        "Left out: 1 event of the phase 'B'.",
        "Left out: 2 events of the phase 'E'.",
    ]


def test_the_check_itself_can_fail(read_events):
    trace = read_events(event(ts=0.0), event(ts=10.0))
    late = replace(trace.events, start=np.array([0, 2 * 10**12]), end=np.array([1, 2 * 10**12]))
    with pytest.raises(AssertionError, match="not so: no event starts apart"):
        check_trace(replace(trace, events=late))
