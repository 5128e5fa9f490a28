"""Memory by line: what a step keeps for its backward pass and what it leaves, and from which share on."""

from dataclasses import replace

import pytest

from diagnose.pipeline.find import build_tables
from diagnose.pipeline.timeline import memory_by_line
from tests.analyzers.flow_tables import CPU, GPU, tables
from tests.dataflow.table import Table

MB = 1_000_000


def steps(*, small=1, left=0, device="cpu") -> Table:
    """Return two steps: exp keeps 4 MB for the backward pass, sin ``small`` bytes; each leaves ``left`` bytes."""
    t = Table()
    for t.step in range(2):
        start = len(t.operators)
        x = t.value(MB, device=device)
        h = t.op("exp", x, line=2, facts={"is_kept": True, "device": device, "dies": start + 3})
        s = t.op("sin", h, shape=(small,), dtype="uint8", line=3,
                 facts={"is_kept": True, "device": device, "dies": start + 3, "num_bytes": small})  # fmt: skip
        if left:
            kept = t.op("neg", s, line=8, phase="other", facts={"device": device, "num_bytes": left})
            t.roots.add(kept.value)
        t.op("cos", s, line=3, phase="backward", forward=start + 1, facts={"device": device, "dies": start + 4})
        t.op("mul", h, line=2, phase="backward", forward=start, facts={"device": device, "dies": start + 4})
    return t


@pytest.mark.parametrize("devices", [CPU, GPU])
def test_a_line_has_its_bytes_and_what_running_it_again_takes(recording, devices):
    table = steps(small=500_000, device="cpu" if devices == CPU else "cuda:0")
    found = memory_by_line(tables(recording, table, devices=devices))
    rows = [(one.where.file, one.where.line, one.num_bytes) for one in found.kept]
    assert rows == [("train.py", 2, 4 * MB), ("train.py", 3, 500_000)]
    assert [one.recompute_ns for one in found.kept] == [pytest.approx(100_000)] * 2
    assert (found.kept_bytes, found.left) == (4_500_000, ())


def test_a_line_below_one_per_cent_of_the_peak_has_no_row(recording):
    found = memory_by_line(tables(recording, steps(small=1000)))
    assert [one.where.line for one in found.kept] == [2]
    assert found.kept_bytes == 4_001_000


def test_what_each_step_leaves_is_listed_from_a_thousandth_of_the_peak_on(recording):
    (left,) = memory_by_line(tables(recording, steps(left=50_000))).left
    assert (left.where.line, left.num_values, left.num_bytes) == (8, 1, 50_000)
    assert memory_by_line(tables(recording, steps(left=50))).left == ()


def test_without_a_backward_pass_there_is_no_table(recording):
    t = Table()
    for t.step in range(2):
        t.op("exp", t.value(MB), line=2, facts={"dies": 2 * t.step + 1})
        t.op("sum", t.value(MB), line=3)
    assert memory_by_line(tables(recording, t)) is None


def test_little_that_is_kept_is_no_table(recording):
    t = steps()
    for i, value in enumerate(t.values):
        if value.num_bytes == 4 * MB and value.is_kept:
            t.values[i] = value._replace(is_kept=False)
    assert memory_by_line(tables(recording, t)) is None


def test_the_time_is_not_known_if_the_timed_steps_lack_the_operators(recording):
    found = memory_by_line(tables(recording, steps(), without="aten::exp"))
    assert [one.recompute_ns for one in found.kept] == [None]


def test_without_a_data_flow_there_is_no_table(recording):
    t = tables(recording, steps())
    assert memory_by_line(build_tables(replace(t.capture, dataflow=None), t.trace)) is None
