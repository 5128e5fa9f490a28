"""growing-work: operators that read more, or run more often, from step to step."""

import pytest

from diagnose.analyzers import growing_work
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import tables
from tests.dataflow.table import Table


def history(grows: int) -> Table:
    t = Table()
    kept = t.value(100, 4, role="state")
    for t.step in range(2):
        kept = t.op("cat", kept, t.value(10, 4), shape=(100 + grows * (1 + t.step), 4), line=7, ns=30)
        t.read_on_host(t.op("mean", kept, shape=(4,), line=8, ns=70))
    return t


def test_a_history_that_is_averaged_anew_costs_what_the_window_shows(recording):
    t = tables(recording, history(grows=10))
    (finding,) = growing_work.find(t)
    assert finding.lost_ns == pytest.approx(100_000 * (1 + 110 / 120), abs=1)
    assert finding.evidence[-2:] == (
        "Operators of line 8 of train.py read 480 elements in a step, 440 in the one before; line 7 of train.py makes "
        "what grows.",
        "1 times a step line 7 of train.py copies a tensor (110 × 4) to put 10 × 4 to it.",
    )
    assert [place.line for place in finding.where] == [7, 8]  # first the one that makes it longer
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["bound-work"]


def test_where_pieces_pile_up_the_line_that_joins_them_stands_first(recording):
    flow = Table()
    pieces = [flow.value(10, 4, role="state") for _ in range(3)]
    for flow.step in range(2):
        pieces.append(flow.op("exp", flow.value(10, 4), line=6, ns=1))
        joined = flow.op("cat", *pieces, shape=(10 * len(pieces), 4), line=7, ns=30)
        flow.read_on_host(flow.op("mean", joined, shape=(4,), line=8, ns=70))
    (finding,) = growing_work.find(tables(recording, flow))
    assert [place.line for place in finding.where] == [7, 8]


def test_what_each_step_leaves_is_named_with_its_line(recording):
    flow = history(grows=10)
    for one in flow.operators:
        if one.name == "aten::mean":
            flow.roots.add(one.writes[0].value)
    (finding,) = growing_work.find(tables(recording, flow))
    assert finding.evidence[-1] == (
        "Each step leaves 1 value (16 bytes) still held after the next one, made at line 8 of train.py (16 bytes)."
    )
    flow.roots.clear()
    (finding,) = growing_work.find(tables(recording, flow))
    assert "leaves" not in " ".join(finding.evidence)


@pytest.mark.parametrize(("side", "needs"), [(0, "over the oldest"), (2, "for it")])
def test_a_buffer_of_one_length_that_is_copied_whole_costs_its_share_of_the_copy(recording, side, needs):
    shape = [4, 4, 4]
    t = Table()
    for t.step in range(2):
        pieces = (
            t.value(*shape[:side], num, *shape[side + 1 :], role=role) for num, role in ((90, "state"), (10, "input"))
        )
        t.read_on_host(t.op("cat", *pieces, line=7, ns=30))
    table = tables(recording, t)
    (finding,) = growing_work.find(table)
    assert finding.lost_ns == 90_000
    (change,) = prescribe(finding, table.steps.step_ns, UNKNOWN)
    assert (change.id, change.after, change.safety.endswith(needs) or needs in str(change)) == ("preallocate", "", True)


def test_a_hook_that_each_step_adds_is_named_by_its_calls(recording):
    flow = Table()
    for flow.step in range(2):
        out = flow.op("relu", flow.value(4), line=5)
        for _ in range(3 + flow.step):
            flow.op("std", out, shape=(), line=9, content="same")
        flow.read_on_host(out)
    (finding,) = growing_work.find(tables(recording, flow))
    assert finding.lost_ns == 265_000  # of three calls in one step and four in the other, all but the first
    assert finding.evidence[-1] == (
        "Operators of line 9 of train.py run 4 times in a step, 3 times in the one before, and most compute the same "
        "again."
    )


def test_a_loop_that_has_fewer_turns_again_does_not_grow(recording):
    flow = Table()
    for flow.step in range(2):
        out = flow.op("relu", flow.value(4), line=5)
        for _ in range(3 + flow.step):
            flow.op("std", out, shape=(), line=9, content="same")
        flow.read_on_host(out)
    t = tables(recording, flow)
    window = t.flow._replace(rows=tuple(rows[:1] for rows in t.flow.rows))  # none of its last step
    vars(t)["flow"] = window
    assert growing_work.find(t) == []
