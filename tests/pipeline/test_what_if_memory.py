"""What to compute again for less memory, through the function behind `diagnose what-if --memory`."""

import json
from dataclasses import replace

import pytest

from diagnose.errors import UsageError
from diagnose.model.dataflow import Frame
from diagnose.pipeline import what_if
from diagnose.pipeline.what_if import ComputedAgain, WhatIfRequest, parse_size, run_what_if, twice
from diagnose.replay.build import replay_base
from diagnose.reports.html import Basis, render_forecasts
from diagnose.tables.flow import flow_of
from tests.analyzers.flow_tables import CPU, GPU, tables
from tests.dataflow.table import Table

MB = 1_000_000


def two_modules(device="cpu") -> Table:
    """Return two steps: exp of module one keeps 4 MB for its backward pass, sin of module two 2 MB, used at once."""
    t = Table()
    for t.step in range(2):
        start = len(t.operators)
        kept = {"is_kept": True, "device": device}
        x = t.value(MB // 4, device=device)
        h = t.op("exp", x, shape=(MB,), line=2, module="one", facts={**kept, "dies": start + 5})
        y = t.op("sum", h, shape=(MB // 2,), line=3, module="two", facts={**kept, "dies": start + 4})
        t.op("sin", y, shape=(1,), line=3, module="two", facts={"device": device, "dies": start + 3})
        t.op("neg", y, shape=(MB,), line=9, phase="other", facts={"device": device, "dies": start + 3})
        t.op("cos", y, shape=(1,), phase="backward", forward=start + 2, facts={"device": device, "dies": start + 5})
        t.op("mul", h, shape=(1,), phase="backward", forward=start, facts={"device": device, "dies": start + 5})
    return t


@pytest.fixture
def asked(recording, monkeypatch):
    """Return a function that asks for a peak in MB; operators take 100 µs each, their kernels 75."""

    def ask(most, *, devices=CPU, change=lambda capture: capture):
        table = two_modules("cpu" if devices == CPU else "cuda:0")
        capture = change(tables(recording, table, devices=devices).capture)
        monkeypatch.setattr(what_if, "open_captures", lambda _paths: [capture])
        return run_what_if("trace.json", WhatIfRequest(memory=int(most * MB)))

    return ask


def test_the_list_holds_what_frees_most_for_its_time(asked):
    answer = asked(10)
    (one,) = answer.memory.calls
    assert (answer.memory.peak_bytes, answer.memory.basis) == (12 * MB + 4, "data flow")
    assert (one.name, one.freed_bytes, one.peak_bytes) == ("one at train.py:2", 4 * MB, 8 * MB + 4)
    assert one.added_ns == pytest.approx(100_000)
    assert answer.after_ns == one.step_ns == pytest.approx(answer.baseline_ns + 100_000)
    assert "longer" in answer.text()


def test_text_and_json_hold_the_same(asked):
    answer = asked(10)
    assert "one at train.py:2: frees 4.0 MB, adds 100 µs per step; then peak 8.0 MB, step 1.10 ms" in answer.text()
    memory = json.loads(answer.to_json())["memory"]
    assert (memory["budget_bytes"], memory["peak_from"]) == (10 * MB, "data flow")
    (one,) = memory["checkpoints"]
    assert (one["line"], one["module"], one["frees_bytes"], one["peak_bytes"]) == (2, "one", 4 * MB, 8 * MB + 4)
    assert one["adds_ms"] == pytest.approx(0.1)


def test_a_step_that_fits_needs_nothing(asked):
    answer = asked(13)
    assert answer.memory.calls == ()
    assert answer.after_ns == answer.baseline_ns
    assert "12.0 MB, by the data flow, which is within 13.0 MB" in answer.text()


def test_of_a_device_the_kernels_take_as_long_once_more(asked):
    answer = asked(10, devices=GPU)
    (one,) = answer.memory.calls
    assert one.added_ns == pytest.approx(100_000, rel=0.3)
    assert answer.memory.basis == "data flow"


def test_the_tasks_that_are_launched_again_take_twice_as_long(recording):
    t = tables(recording, two_modules("cuda:0"), devices=GPU)
    before = replay_base(t).graph
    after = twice(before, t=t, pieces=flow_of(t).time_of(t, [6]))
    assert sorted(set((after.duration - before.duration)[before.is_task].tolist())) == [0, 75_000]


def test_memory_records_count_what_the_data_flow_does_not_hold(asked, recording):
    def with_records(capture):
        r = recording()
        for step in range(2):
            r.step(step + 1, 1000 * step, 1000 * step + 1000)
            r.memory(1000 * step + 300, 30 * MB, 1 + step, 30 * MB)
            r.memory(1000 * step + 400, -30 * MB, 1 + step, 0)
        r.kernel("one", 0, 100, launched=(-20, -15))
        return replace(capture, attribution=r.trace)

    answer = asked(27, devices=GPU, change=with_records)
    assert (answer.memory.peak_bytes, answer.memory.basis) == (30 * MB, "memory records")
    assert answer.memory.calls[0].peak_bytes == 26 * MB


def test_a_peak_that_cannot_be_reached_is_refused_with_what_is_missing(asked):
    with pytest.raises(UsageError, match=r"falls from 12\.0 MB to 8\.0 MB, which is 7\.0 MB too much"):
        asked(1)


def test_without_a_data_flow_the_answer_is_how_to_record_it(asked):
    with pytest.raises(UsageError, match="without --no-dataflow"):
        asked(8, change=lambda capture: replace(capture, dataflow=None))


def test_a_data_flow_of_other_operators_is_refused(asked):
    def of_others(capture):
        flow = capture.dataflow
        return replace(
            capture, dataflow=replace(flow, operators=tuple(one._replace(name="aten::tan") for one in flow.operators))
        )

    with pytest.raises(UsageError, match="differs from its timed steps"):
        asked(8, change=of_others)


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("500MB", 500 * MB), ("1.5 GB", 1500 * MB), ("2GiB", 2 << 30), ("3 kib", 3072), ("7b", 7)]
)
def test_a_size_has_a_unit(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["20", "GB", "20 apples", "-1GB", "0MB", "1e3MB", "20G", "9" * 400 + "TB"])
def test_what_has_none_is_refused(text):
    with pytest.raises(UsageError, match="20GiB"):
        parse_size(text)


def test_the_page_has_the_list(asked):
    answer = asked(10)
    page = render_forecasts(
        "capture", answer.forecasts, answer.path, Basis(answer.error, memory=tuple(answer.memory.lines()))
    )
    assert "<li>  one at train.py:2: frees 4.0 MB" in page


def test_a_line_is_named_with_what_calls_it():
    at = Frame("/home/me/train.py", 2, "f"), Frame("/home/me/train.py", 7, "main")
    assert ComputedAgain(*at, "", 1, 1.0, 1, 1.0).name == "train.py:2, called at train.py:7"
