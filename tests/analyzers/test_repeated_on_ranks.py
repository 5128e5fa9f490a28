"""repeated-on-ranks: each rank computes the whole and reads the part of its own number."""

from dataclasses import replace

import pytest

from diagnose.model.dataflow import Frame, Use
from diagnose.pipeline.run import analyze_captures
from tests.dataflow.table import FILE, Table, strides

WORK_US = 300
PREPARE = (Frame(FILE, 7, "prepare"), Frame(FILE, 20, "step"))


def flow(rank, *, world=2, takes=None, collective=False, all_read=False):
    """Return two steps that prepare 8 rows and take those of the rank."""
    t = Table()
    for t.step in range(2):
        rows = t.value(8, 4)
        kept = t.op("mul.Tensor", rows, stack=PREPARE, is_collective=collective)
        part = Use(
            kept.value, (8 // world, 4), strides((8, 4)), (8 // world) * 4 * (rank if takes is None else takes), ""
        )
        t.op("slice.Tensor", kept, line=21, is_view=True, writes=())
        loss = t.op("sum", part, shape=(), line=30)
        if all_read:
            t.op("sum", kept, shape=(), line=31)
        t.read_on_host(loss, line=30)
    return t.graph().flow


def captures(recording, world=2, **options):
    made = []
    for rank in range(world):
        r = recording(devices=())
        for step in range(4):
            begin = 1000 * step
            r.step(step + 1, begin, begin + 1000)
            r.op("aten::mul", begin + 100, begin + WORK_US)
            r.op("aten::sum", begin + 400, begin + 700)
            r.annotation("gloo:all_reduce", begin + 900, begin + 1000, thread="gloo")
        capture = r.capture()
        trace = replace(capture.trace, rank=rank, world_size=world)
        lines = {("train.py", 20): "feats = prepare(rows)", ("train.py", 21): "mine = feats[part]"}
        made.append(replace(capture, trace=trace, dataflow=flow(rank, world=world, **options), lines=lines))
    return made


def found_in(recording, *args, **options):
    answer = analyze_captures(captures(recording, *args, **options))
    return answer, next((f for f in answer.findings if f.rule == "repeated-on-ranks"), None)


def test_half_of_what_both_ranks_prepare_is_thrown_away(recording):
    answer, finding = found_in(recording)
    # the whole takes the 300 µs from the start of the step to its end
    assert finding.lost_ns == pytest.approx(WORK_US * 1000 / 2)
    assert [(w.line, w.code) for w in finding.where] == [(20, "feats = prepare(rows)"), (21, "mine = feats[part]")]
    assert finding.evidence[0].endswith("and reads 1/2 of it: another part on each rank.")
    assert "cut-first" in [p.id for p in answer.prescriptions]


def test_of_four_ranks_three_quarters(recording):
    assert found_in(recording, 4)[1].lost_ns == pytest.approx(WORK_US * 1000 * 3 / 4)


@pytest.mark.parametrize("options", [{"takes": 0}, {"collective": True}, {"all_read": True}])
def test_what_is_no_work_for_other_ranks(recording, options):
    """All ranks read the same part; others computed their part of it; something reads all of it."""
    assert found_in(recording, **options)[1] is None
