"""Recorded traces, read the fast way and with Python's own parser."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Kind, Trace
from diagnose.trace_reader import open_captures, read_trace
from diagnose.trace_reader.schema import CATEGORIES
from tests.trace_reader.guarantees import check_trace

SMALL = 130_000  # bytes, compressed


def is_row(event: dict[str, Any]) -> bool:
    return (event.get("ph") == "X" and event.get("cat") in CATEGORIES) or event.get("name") == "[memory]"


def ns(us: str | int | Decimal | None) -> int:
    return int((Decimal(us or 0) * 1000).to_integral_value())


def assert_sound(trace: Trace) -> None:
    events = trace.events
    assert events.start[0] == 0
    assert (np.diff(events.start) >= 0).all()
    assert (events.end >= events.start).all()
    tasks = np.flatnonzero(events.cause >= 0)
    calls = events.cause[tasks]
    assert (events.kind[calls] == Kind.RUNTIME).all()
    assert (events.correlation[calls] == events.correlation[tasks]).all()
    on_host = np.isin(events.kind, (Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.MEMORY, Kind.GC))
    assert (events.thread[on_host] >= 0).all()
    assert events.name.max() < len(trace.names)
    assert events.thread.max() < len(trace.threads)


def read_or_refuse(file: Path) -> InputError | None:
    try:
        trace = read_trace(file)
    except InputError as error:
        return error
    assert_sound(trace)
    check_trace(trace)
    assert not trace.cut
    return None


def test_every_file_is_read_or_refused_in_a_sentence(corpus, recorded, extent):
    names = [*recorded.of(extent), "edge_not_kineto_rocprof"]
    files = [file for file in corpus if file.name.removesuffix(".json.gz") in names]
    refused = {file.name: type(error) for file in files if (error := read_or_refuse(file))}
    assert refused == {"edge_not_kineto_rocprof.json.gz": NotATraceError}


def test_small_files_agree_with_pythons_parser(corpus):
    for file in (f for f in corpus if f.stat().st_size < SMALL):
        raw = json.loads(gzip.decompress(file.read_bytes()), parse_float=Decimal)
        rows = [event for event in (raw if isinstance(raw, list) else raw["traceEvents"]) if is_row(event)]
        trace = read_trace(file)
        events = trace.events
        first = min(ns(row["ts"]) for row in rows)
        wanted = sorted((ns(row["ts"]) - first, ns(row.get("dur")), row["name"]) for row in rows)
        found = zip(events.start.tolist(), (events.end - events.start).tolist(), events.name.tolist(), strict=True)
        assert sorted((start, dur, trace.names[name]) for start, dur, name in found) == wanted, file.name


def test_the_eight_ranks_of_one_node(corpus):
    ranks = [file for file in corpus if file.name.startswith("param_dlrm")]
    captures = open_captures(ranks[::-1])
    assert [capture.trace.rank for capture in captures] == list(range(8))
    assert {capture.trace.world_size for capture in captures} == {8}


@pytest.mark.parametrize("module", ["torch", "pandas", "plotly", "rich"])
def test_reading_imports_nothing_heavy(module):
    code = f"import sys, diagnose.trace_reader; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parent).returncode == 0
