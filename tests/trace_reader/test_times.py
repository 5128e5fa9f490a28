"""Microseconds of every style become the right nanoseconds."""

from __future__ import annotations

import pytest
from msgspec import Raw

from diagnose.trace_reader.rows import UNKNOWN_NS, exact_ns, instants_ns

OP = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": %s, "dur": %s}'


def trace_of(*times: tuple[str, str], base: int | None = None) -> str:
    head = "" if base is None else f'"baseTimeNanoseconds": {base}, '
    return "{" + head + '"displayTimeUnit": "ns", "traceEvents": [' + ",".join(OP % pair for pair in times) + "]}"


def test_microseconds_whatever_the_display_unit_says(read_text):
    trace = read_text(trace_of(("5", "2"), ("9.25", "0.5")))
    assert trace.events.start.tolist() == [0, 4250]
    assert trace.events.end.tolist() == [2000, 4750]


def test_relative_times_count_from_the_base(read_text):
    trace = read_text(trace_of(("1419116104994.671", "1"), base=1751410836000000000))
    assert trace.epoch_ns == 1751410836000000000 + 1419116104994671


def test_whole_epoch_times(read_text):
    trace = read_text(trace_of(("1623142623460111", "25"), ("1623142623460147", "7")))
    assert trace.events.start.tolist() == [0, 36_000]
    assert trace.epoch_ns == 1623142623460111000


def test_epoch_times_with_a_fraction_keep_their_nanoseconds(read_text):
    # As floats the first two would be 0.25 µs apart or equal.
    times = ["1712195495519689.047", "1712195495519689.124", "1712195495519689.5", "1712195495519690"]
    trace = read_text(trace_of(*[(time, "0.001") for time in times]))
    assert trace.events.start.tolist() == [0, 77, 453, 953]
    assert trace.epoch_ns == 1712195495519689047


@pytest.mark.parametrize(
    ("texts", "ns"),
    [
        (("1712195495519689.047", "1712195495519689.5", "1712195495519690.25"), [1712195495519689047, 453, 1203]),
        (("1712195495519689.047", "1712195495519690"), [1712195495519689047, 953]),  # no point
        (("1712195495519689.047", "1712195495519689.0479"), [1712195495519689047, 0]),  # four decimals
        (("999999999999999.5", "1000000000000000.5"), [999999999999999500, 1000]),  # a digit more
        (("2e15", "2000000000000000.5"), [2000000000000000000, 500]),
        (('"1712195495519689.5"', '"1712195495519690.5"'), [1712195495519689500, 1000]),
    ],
)
def test_digits_of_every_layout_become_exact(texts, ns):
    first, *others = exact_ns([Raw(text.encode()) for text in texts])
    assert [first, *(other - first for other in others)] == ns


@pytest.mark.parametrize("text", ["9999999999999999.999", "99999999999999999.999", "-9999999999999999.999", "null", ""])
def test_digits_of_no_time_are_unknown(text):
    assert instants_ns(exact_ns([Raw(text.encode())])).tolist() == [UNKNOWN_NS]


def test_a_monotonic_clock_is_not_the_wall_clock(read_text):
    assert read_text(trace_of(("6520618872325.064", "1"))).epoch_ns == 0


@pytest.mark.parametrize("dur", ["-3", "0", "0.0"])
def test_no_event_ends_before_it_starts(read_text, dur):
    events = read_text(trace_of(("5", dur))).events
    assert events.end.tolist() == events.start.tolist()


def test_exponents_and_text(read_text):
    trace = read_text(trace_of(("1e3", "1E1"), ('"1002.5"', '"2"')))
    assert trace.events.start.tolist() == [0, 2500]
    assert trace.events.end.tolist() == [10_000, 4500]
