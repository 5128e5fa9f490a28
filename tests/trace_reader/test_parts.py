"""A file that several processes read: the same as by one, and by one alone where anything is odd."""

import gzip
import json
import os
import signal
import threading
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from diagnose.trace_reader import parts, read_trace
from diagnose.trace_reader.parts import read_parts
from diagnose.trace_reader.stored import Stored

NUMBERED = ("name", "shapes", "types", "values", "detail")


def events(num=4_500):
    """Return operators on two threads with a kernel each, and a name of a thread at the end alone; about 1.5 MB."""
    found = []
    for n in range(num):
        ts, of = n * 10.0, {"pid": 1, "tid": 5 + n % 2}
        args = {"Input Dims": [[n % 7, 4]], "Input type": ["float"], "Sequence number": n}
        found += [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::op{n % 50}", "ts": ts, "dur": 8.0, "args": args, **of},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 1, "dur": 1.0, **of}
            | {"args": {"correlation": n + 1}},
            {"ph": "X", "cat": "kernel", "name": f"k{n // 2000}", "pid": 0, "tid": 7, "ts": ts, "dur": 8.0}
            | {"args": {"correlation": n + 1, "device": 0, "stream": 7, "grid": [n % 9, 1, 1]}},
        ]
    named = {"name": "loader"}
    return [*found, {"ph": "M", "cat": "", "name": "thread_name", "pid": 1, "tid": 6, "ts": 0, "args": named}]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return what writes a trace from its text around the events, and from what is done to it then."""
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 18)
    monkeypatch.setattr(parts, "_AHEAD_BYTES", 1 << 18)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # several tests at a time run beside a thread

    def written(found, *, damage=lambda text: text, behind=""):
        head = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": '
        text = head + json.dumps(found) + behind + ', "distributedInfo": {"rank": 3, "world_size": 8}}'
        path = tmp_path / "trace.json"
        path.write_text(damage(text))
        return Stored(str(path), "trace.json")

    return written


def content(trace):
    """Return all that a trace holds; names by their text, whose numbers the order of reading decides."""
    texts = np.array([*trace.names, None], object)
    columns = {f.name: getattr(trace.events, f.name) for f in fields(trace.events)}
    rows = {name: (texts[c] if name in NUMBERED else c).tolist() for name, c in columns.items()}
    return rows, trace.threads, trace.trust, trace.rank, trace.world_size, trace.raw_bytes, trace.cut, trace.metadata


def damaged(text, behind):
    """Return the text with what is no JSON before an event's first duration behind a place."""
    at = text.index('"dur"', behind)
    return text[:at] + "}}garbage{{" + text[at:]


@pytest.mark.parametrize("processes", [2, 3])
def test_two_and_three_processes_read_what_one_reads(write, processes):
    stored = write(events())
    found = read_parts(stored, "trace.json", processes)
    assert found.rows.count == 13_500
    assert content(read_trace(stored, processes)) == content(read_trace(stored))


def test_other_work_is_done_while_the_others_read_and_not_where_there_are_none(write):
    done, stored = [], write(events())
    found = content(read_trace(stored, 2, lambda: done.append("imports")))
    assert found == content(read_trace(stored))
    assert done == ["imports"]
    many = read_parts(stored, "trace.json", 64, lambda: done.append("again"))  # as many as there is work for
    assert many.raw_bytes == Path(stored.path).stat().st_size
    read_trace(stored, 1, lambda: done.append("not for one process"))
    assert done == ["imports", "again"]


def test_times_that_need_their_digits_are_read_so_by_each(write):
    stored = write([{**e, "ts": 1_790_000_000_000_000.125 + e["ts"]} if e["ph"] == "X" else e for e in events()])
    assert read_parts(stored, "trace.json", 2) is not None
    assert content(read_trace(stored, 2)) == content(read_trace(stored))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) * 3 // 4],
        lambda text: damaged(text, len(text) // 4),
        lambda text: damaged(text, len(text) * 3 // 4),
    ],
    ids=["cut off", "damaged in the first half", "damaged in the second half"],
)
def test_a_damaged_file_is_read_by_one_process(write, damage):
    stored = write(events(), damage=damage)
    assert read_parts(stored, "trace.json", 2) is None
    assert content(read_trace(stored, 2)) == content(read_trace(stored))


def test_a_list_that_ends_in_the_first_half_of_the_file_is_read_to_its_end(write):
    """What follows looks like events, and is none."""
    stored = write(events(2_000), behind=f', "others": {json.dumps(events())}')
    assert content(read_trace(stored, 2)) == content(read_trace(stored))
    assert len(read_trace(stored, 2).events) == 6_000


def test_text_that_looks_like_events_inside_one_is_no_place_to_cut(write):
    fake = ", ".join(['{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}'] * 20_000)
    long = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "long",
        "pid": 1,
        "tid": 5,
        "ts": 5.0,
        "dur": 2.0,
        "args": {"x": [fake]},
    }
    found = events(3_000)
    stored = write([*found[:4_000], long, *found[4_000:]])
    assert content(read_trace(stored, 2)) == content(read_trace(stored))
    assert len(read_trace(stored, 2).events) == 9_001


def test_a_process_that_is_killed_costs_time_and_nothing_else(write, monkeypatch):
    def killed(*_args, **_options):
        os.kill(os.getpid(), signal.SIGKILL)

    stored = write(events())
    expected = content(read_trace(stored))
    monkeypatch.setattr(parts, "_read_range", killed)
    assert read_parts(stored, "trace.json", 2) is None
    assert content(read_trace(stored, 2)) == expected


def test_what_cannot_be_divided_is_read_by_one_process(write, tmp_path, monkeypatch):
    stored = write(events())
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes(), 1))
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 10)
    assert read_parts(Stored(str(packed), "trace.json.gz"), "trace.json.gz", 2) is None
    assert read_parts(stored, "trace.json", 1) is None
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 30)
    assert read_parts(stored, "trace.json", 2) is None


def test_beside_other_threads_no_process_is_forked(write, monkeypatch):
    stored = write(events())
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert read_parts(stored, "trace.json", 2) is None
