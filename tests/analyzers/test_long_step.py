"""What rules find in a step that is long now and then, of a data flow; every tenth of a run of 10 ms steps takes 40."""

from dataclasses import replace

import pytest

from diagnose.analyzers import computed_again, dead_work, growing_work, independent_loop
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.capture import CaptureInfo
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables
from tests.dataflow.table import Table

MS = 1_000_000


def train(t):
    return t.op("mm", t.value(4, 4), line=1, ns=2 * MS, content=f"loss {t.step}")


def long(act) -> Table:
    """Return a usual step and one that does more before it."""
    t = Table()
    t.read_on_host(train(t))
    t.step = 1
    act(t)
    t.read_on_host(train(t))
    return t


@pytest.fixture
def long_tables(recording, run_steps):
    def make(act, every=10):
        run = run_steps([40.0 if i % 10 == 9 else 10.0 for i in range(40)])
        usual = tables(recording, steps(train))
        info = CaptureInfo(long_step_file="rank0.long.dataflow.json.gz", long_step_every=every)
        capture = replace(usual.capture, run=run, info=info, long_step=long(act).graph().flow)
        return build_tables(capture, capture.trace)

    return make


def chunks(t, num=4):
    whole = t.value(9, 9, content=f"articles {t.step}")
    for i in range(num):
        made = t.op("exp", whole, line=20, ns=5 * MS, content=f"vectors {t.step}")
        t.read_on_host(t.op("mm", made, t.value(9, 9, content=f"readers {i}"), line=30, ns=MS))


def test_what_is_computed_again_costs_what_the_mean_step_takes_for_it(long_tables):
    (finding,) = computed_again.find(long_tables(chunks))
    assert finding.title == "Operators compute again what the step has computed, in 1 step of 10"
    assert finding.lost_ns == pytest.approx(1.5 * MS)  # three times 5 ms, every tenth step
    assert finding.share == pytest.approx(1.5 / 13, rel=0.05)
    assert finding.evidence[1] == "The step computes the same several times, at line 20 of train.py."
    assert [place.line for place in finding.where][:1] == [20]


def test_a_change_saves_a_part_of_the_run(long_tables):
    (finding,) = computed_again.find(long_tables(chunks))
    (change,) = prescribe(finding, 13 * MS, UNKNOWN)
    assert change.id == "reuse-result"
    assert change.saves_ns[1] == pytest.approx(1.5 * MS)
    assert change.mean_step_ns == pytest.approx(13 * MS, rel=0.05)


def test_what_usual_steps_do_as_well_is_no_part_of_it(long_tables):
    def again(t):
        for _ in range(3):
            t.read_on_host(t.op("mm", t.value(4, 4, content="x"), line=1, ns=9 * MS, content="y"))

    assert computed_again.find(long_tables(again)) == []


def test_an_evaluation_of_other_batches_is_not_named(long_tables):
    def evaluate(t):
        for i in range(4):
            t.read_on_host(t.op("exp", t.value(9, 9, content=f"batch {i}"), line=20, ns=5 * MS))

    t = long_tables(evaluate)
    assert [each for rule in (computed_again, dead_work, growing_work) for each in rule.find(t)] == []


def test_a_result_that_is_not_read_is_named(long_tables):
    def extra(t):
        x = t.value(9, 9)
        t.op("exp", x, line=21, ns=8 * MS, facts={"dies": len(t.operators) + 1})
        t.read_on_host(t.op("sin", x, line=22, ns=MS))

    (finding,) = dead_work.find(long_tables(extra))
    assert finding.title == "Operators compute a result that nothing uses, in 1 step of 10"
    assert finding.lost_ns == pytest.approx(0.8 * MS)


def test_less_than_the_rule_names_in_each_step_is_not_named(long_tables):
    assert computed_again.find(long_tables(lambda t: chunks(t, num=2), every=40)) == []


def test_without_a_long_step_nothing_is_found(long_tables):
    t = long_tables(chunks, every=0)
    assert computed_again.find(t) == []
    assert independent_loop.find(t) == []
