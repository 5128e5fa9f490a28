"""Small programs whose steps are recorded as data flow, with what a capture holds of their source."""

import gzip
import json
import os

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
    """Return two calls of a program's ``step`` as data flow, and its source as a capture holds it."""
    path = tmp_path / "train.py"
    path.write_text(text)
    os.utime(path, (1e9, 1e9))  # it is no change of a running script
    flow = record_dataflow(names_of(text, path)["step"])
    places = {(frame.file, frame.line) for one in flow.operators for frame in one.stack if frame.file == str(path)}
    stored = tmp_path / "lines.json.gz"
    stored.write_bytes(gzip.compress(json.dumps(SourceLines(tmp_path).stored(sorted(places))).encode()))
    found = read_lines(stored)
    source = OwnSource(found.lines, found.loops, found.functions, found.bound, found.sources)
    return Flow(analyse(flow), ((),) * len(flow.operators), source=source)
