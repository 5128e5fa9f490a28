"""A file that is cut off: the first line states it, and no change is promised anything."""

from __future__ import annotations

import gzip
import json

import pytest

from diagnose.answer.screen import answer
from diagnose.api import analyze_trace
from diagnose.cli.ignoring import RuleChoice, leave_out
from diagnose.model.words import english
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if
from diagnose.reports import text
from diagnose.reports.json_reading import from_json

NUM_STEPS = 40
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def events(num_steps=NUM_STEPS):
    """Yield steps of 1000 µs of which 600 wait for the batch, a step's calls and tasks together."""
    host, device = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
    for step in range(num_steps):
        at = 1000.0 * step
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 1000.0, "args": {}}
        yield {**host, **mark}
        yield {**host, "cat": "user_annotation", "name": LOAD, "ts": at + 5, "dur": 600.0, "args": {}}
        for i in range(12):
            link, begin = {"correlation": 100 * step + i + 1}, at + 610 + 30 * i
            yield {**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin, "dur": 20.0, "args": {}}
            yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 2, "dur": 5.0, "args": link}
            yield {**device, "name": "gemm", "ts": begin + 8, "dur": 28.0, "args": {"device": 0, "stream": 7, **link}}


def read(path, share, listed=events):
    """Diagnose the first share of the bytes of a packed trace."""
    data = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": list(listed())}).encode(), mtime=0)
    path.write_bytes(data[: int(share * len(data))])
    return analyze_trace(path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.json.gz"


def test_the_whole_file_is_answered(file):
    screen = answer(read(file, 1.0))
    assert screen.record_again is None
    assert screen.after is not None


@pytest.mark.parametrize("share", [0.3, 0.6, 0.98])
def test_a_file_that_is_cut_off_is_not(file, share):
    d = read(file, share)
    screen = answer(d)
    assert d.record_again == english(screen.record_again) == "The file is cut off: copy or record it again."
    assert english(screen.headline) == d.headline == "Record again first: the file is cut off"
    assert (screen.after, screen.cards, d.waterfall) == (None, (), None)
    assert screen.command.startswith("diagnose trace")
    assert {p.saves_ns for p in d.prescriptions} <= {(0.0, 0.0)}
    first, *_ = text.render(d, width=100).splitlines()
    assert "the file is cut off" in first


def test_nor_one_in_which_nothing_is_found(file):
    def plain():
        yield {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 1e4, "args": {}}
        for i in range(500):
            yield {"ph": "M", "name": "process_name", "pid": i, "tid": 0, "ts": 0.0, "args": {"name": f"p{i}"}}

    d = read(file, 0.8, plain)
    assert d.findings == ()
    assert d.headline == "Record again first: the file is cut off"
    assert answer(d).command == "diagnose trace --quick train.py"


def test_a_replay_that_is_asked_for_states_the_cut(file):
    read(file, 0.6)
    result = run_what_if(file, WhatIfRequest(without=("data-stall",)))
    assert result.assumptions[0] == "Record again first: the file is cut off: copy or record it again."
    read(file, 1.0)
    assert not any("cut off" in text for text in run_what_if(file, WhatIfRequest()).assumptions)


def test_the_cut_stays_when_findings_are_left_out_and_when_it_is_read_back(file):
    d = read(file, 0.6)
    rules = {f.rule for f in d.findings}
    assert rules
    for other in (leave_out(d, RuleChoice.of(ignore=rules)), from_json(d.to_json(), source="a report")):
        assert english(answer(other).headline) == "Record again first: the file is cut off"
        assert other.headline == d.headline
