"""Small programs whose steps are recorded as data flow, with what a capture holds of their source."""

import gzip
import json
import os
from dataclasses import replace

from diagnose.capture.record.source_lines import SourceLines
from diagnose.dataflow import analyse
from diagnose.model.own_source import OwnSource
from diagnose.tables.flow import Flow
from diagnose.trace_reader.documents import read_lines
from tests.capture.flows import record_dataflow

__all__ = ["names_of", "recorded"]


def names_of(text, path="train.py"):
    """Run a program and return its names."""
    names = {"__name__": "train"}
    exec(compile(text, str(path), "exec"), names)
    return names


def recorded(text, tmp_path):
    """Return two calls of a program's ``step`` as data flow, and its source as a capture holds it.

    Each operator takes a microsecond and a nanosecond per byte that it reads or writes: no test depends on the clock.
    """
    path = tmp_path / "train.py"
    path.write_text(text)
    os.utime(path, (1e9, 1e9))  # it is no change of a running script
    flow = record_dataflow(names_of(text, path)["step"])
    num_bytes = [value.num_bytes for value in flow.values]
    timed = [
        one._replace(host_ns=1_000 + sum(num_bytes[use.value] for use in (*one.reads, *one.writes)))
        for one in flow.operators
    ]
    flow = replace(flow, operators=tuple(timed))
    places = {(frame.file, frame.line) for one in flow.operators for frame in one.stack if frame.file == str(path)}
    stored = tmp_path / "lines.json.gz"
    stored.write_bytes(gzip.compress(json.dumps(SourceLines(tmp_path).stored(sorted(places))).encode()))
    found = read_lines(stored)
    source = OwnSource(found.lines, found.loops, found.functions, found.bound, found.sources)
    return Flow(analyse(flow), ((),) * len(flow.operators), source=source)
