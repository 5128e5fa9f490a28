"""straggler: ranks that wait for each other in collectives, seen from all their traces together."""

import json
from dataclasses import replace

import pytest

from diagnose.model.capture import Capture
from diagnose.model.locations import Where
from diagnose.pipeline.run import analyze_captures
from diagnose.pipeline.shares import _WAITING, EXPOSED, left_of
from diagnose.reports.json import schema, to_dict

validate = pytest.importorskip("jsonschema", reason="the schema is checked with the package jsonschema").validate
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def rank(recording, number, comes, *, name=NCCL, hidden=False):
    """Return a rank that computes until ``comes`` (µs) and leaves the collective at 900, in a step of 1000."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 900 if hidden else comes, launched=(-20, -15))
    r.kernel(name, comes, 900, launched=(-10, -5), stream=9)
    r.kernel("adam", 900, 1000, launched=(-4, -2))
    return Capture(replace(r.trace, rank=number, world_size=3))


def answer(recording, *comes, **options):
    return analyze_captures([rank(recording, i, time, **options) for i, time in enumerate(comes)])


def straggler(diagnosis):
    return next((f for f in diagnosis.findings if f.rule == "straggler"), None)


def test_two_ranks_wait_for_the_third(recording):
    found = answer(recording, 300, 800, 500)
    finding = straggler(found)
    # it computes 800 µs, the others 300 and 500: without it the step would end 300 µs earlier
    assert finding.title == (
        "Rank 1 comes late in the one recorded step: the others wait 300 µs a step; the forward computes 400 µs "
        "longer there"
    )
    assert finding.lost_ns == pytest.approx(300_000)
    assert finding.evidence == (
        "Of the waiting in 1 collective of the one step, 100 % is for rank 1, late by 400 µs.",
        "Rank 1 against the median of its equals, ms per step: compute-forward +0.40.",
        "Waiting that nothing hides, ms per step: rank 0 0.50, rank 1 0.00, rank 2 0.30.",
    )
    assert finding.confidence == "low"
    assert found.dominant == found.findings[0].rule == "straggler"
    assert [r.waits_ns for r in found.ranks] == [500_000, 0, 300_000]
    assert found.partition.compute == pytest.approx(0.9)  # the answer is the late rank's
    assert "even-out-ranks" in [p.id for p in found.prescriptions]


def exchanging(recording, number, comes):
    """Return a rank that computes until ``comes`` and exchanges until 900; all are inside together for 100 of that."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, comes, launched=(-20, -15))
    r.kernel("ncclDevKernel_SendRecv", comes, 900, launched=(-10, -5), stream=9)
    r.kernel("adam", 900, 1000, launched=(-4, -2))
    return Capture(replace(r.trace, rank=number, world_size=3))


def test_waiting_for_the_late_rank_is_no_cost_of_the_exchange(recording):
    """Rank 0 is inside for 600 µs, of which it waits 500 for rank 1: by itself it would save them, all ranks know."""
    alone = analyze_captures([exchanging(recording, 0, 300)])
    assert [(f.rule, f.lost_ns) for f in alone.findings] == [("exposed-communication", pytest.approx(600_000))]
    whole = analyze_captures([exchanging(recording, i, 300 if i != 1 else 800) for i in range(3)])
    found = {f.rule: f for f in whole.findings}
    assert found["straggler"].worth_ns == pytest.approx(500_000)
    assert found["exposed-communication"].lost_ns == pytest.approx(100_000)  # of the late rank, which waits for nobody
    begun = left_of(alone, EXPOSED, 1 / 6, _WAITING)  # and of a rank that waits
    cost = begun.findings[0]
    assert (cost.lost_ns, cost.worth_ns) == (pytest.approx(100_000), pytest.approx(100_000))
    assert cost.evidence[-1] == "500 µs more is waiting for other ranks, which no change of the exchange removes."
    for p, q in zip(alone.prescriptions, begun.prescriptions, strict=True):
        assert q.saves_ns == pytest.approx(tuple(ns / 6 for ns in p.saves_ns))


def test_its_json_fits_the_schema(recording):
    document = to_dict(answer(recording, 300, 800, 500))
    validate(document, schema())
    assert [r["waits_ms"] for r in json.loads(json.dumps(document))["ranks"]] == [0.5, 0.0, 0.3]


def test_ranks_that_take_turns(recording):
    captures = []
    for number in range(3):
        r = recording()
        for step in range(3):
            late = 700 if step == number else 200
            begin = 1000 * step
            r.step(step + 1, begin, begin + 1000)
            r.kernel("gemm", begin + 20, begin + late, launched=(begin + 5, begin + 8))
            r.kernel(NCCL, begin + late, begin + 900, launched=(begin + 9, begin + 12), stream=9)
            r.kernel("adam", begin + 900, begin + 1000, launched=(begin + 13, begin + 16))
        captures.append(Capture(replace(r.trace, rank=number, world_size=3)))
    finding = straggler(analyze_captures(captures))
    assert finding.title == (
        "Ranks 0, 1 and 2 take turns in coming late; the forward computes 500 µs longer on whichever is late"
    )
    assert finding.lost_ns == pytest.approx(2 * 500_000 / 3)


@pytest.mark.parametrize(
    ("comes", "options"),
    [
        ((500, 500, 500), {}),
        ((500, 540, 500), {}),  # less than 5 % of the step
        ((300, 800, 500), {"hidden": True}),  # computation hides it
        ((300,), {}),
    ],
)
def test_when_nobody_is_late(recording, comes, options):
    assert straggler(answer(recording, *comes, **options)) is None


def test_collectives_that_do_not_match_are_not_compared(recording):
    found = analyze_captures([rank(recording, 0, 300), rank(recording, 1, 800, name="ncclDevKernel_AllGather_RING_LL")])
    assert straggler(found) is None
    assert [r.waits_ns for r in found.ranks] == [None, None]


@pytest.mark.parametrize(
    ("pause", "dominant", "headline"),
    [
        (250, "straggler", "Rank 1 comes late in the one recorded step (60.0 %)"),
        (
            350,
            "python-stall",
            "Rank 1 is late: Python between operators delays the step (costs 35.0 % of the step)",
        ),
    ],
)
def test_what_the_late_rank_does_is_the_cause_where_it_explains_half_of_the_waiting(
    recording, pause, dominant, headline
):
    captures = []
    for number, comes in enumerate((300, 900, 300)):  # the others wait for 600 µs
        r = recording(devices=())
        r.step(1, 0, 1000)
        r.op("aten::mm", 0, comes - (pause if number == 1 else 0))
        r.annotation("gloo:all_reduce", comes, 1000, thread="gloo")
        captures.append(Capture(replace(r.trace, rank=number, world_size=3)))
    found = analyze_captures(captures)
    assert found.dominant == found.findings[0].rule == dominant
    assert found.headline == headline


def two_phases(recording, number, mm_us, back_us):
    """Return a rank whose step of 2000 µs has a forward and a backward, each sampled at its line every 20 µs."""
    r = recording(devices=())
    r.step(1, 0, 2000)
    r.op("aten::mm", 0, mm_us)
    r.op("autograd::engine::evaluate_function: MmBackward0", mm_us, mm_us + back_us)
    r.samples_every(20, 0, mm_us, ("train.py", 7, "main"), 1)
    r.samples_every(20, mm_us, mm_us + back_us, ("train.py", 9, "main"), 1)
    r.annotation("gloo:all_reduce", mm_us + back_us, 2000, thread="gloo")
    capture = r.capture()
    trace = replace(capture.trace, rank=number, world_size=3)
    return replace(capture, trace=trace, lines={("train.py", 9): "loss.backward()"})


def test_the_line_is_where_the_late_rank_spends_more_than_the_others(recording):
    # the forward takes 1000 µs everywhere; the backward 900 on rank 1 and 200 on the others
    found = straggler(analyze_captures([two_phases(recording, n, 1000, b) for n, b in enumerate((200, 900, 200))]))
    assert found.facts["cause"] == "compute-backward"
    assert found.where == (Where("train.py", 9, "main", code="loss.backward()"),)


@pytest.mark.parametrize(("ready", "confidence"), [((0.1, 0.6, 0.1), "low"), ((0.6, 0.7, 0.6), "high")])
def test_a_rank_without_a_core_may_be_late_for_that_alone(recording, ready, confidence):
    captures = []
    for number, (comes, share) in enumerate(zip((300, 800, 300), ready, strict=True)):
        r = recording(devices=())
        r.with_info(sampler={"ready_share": share})
        for step in range(6):
            begin = 1000 * step
            r.step(step + 1, begin, begin + 1000)
            r.op("aten::mm", begin, begin + comes)
            r.annotation("gloo:all_reduce", begin + comes, begin + 1000, thread="gloo")
        captures.append(replace(r.capture(), trace=replace(r.trace, rank=number, world_size=3)))
    finding = straggler(analyze_captures(captures))
    assert finding.confidence == confidence
    assert any("not scheduled for 60 % of the time, the others for 10 %" in e for e in finding.evidence) is (
        confidence == "low"
    )


def host_bound(recording, number, behind, *, full=False):
    """Return a rank whose host takes all of each step of 1000 µs; its part of each collective begins at 300."""
    r = recording()
    for step in range(4):
        begin = 1000 * step
        r.step(step + 1, begin, begin + 1000)
        r.op("aten::mm", begin, begin + 990)
        r.kernel("gemm", begin + 20, begin + (300 if not full else 290), launched=(begin + 5, begin + 10))
        r.kernel(NCCL, begin + 300 + behind, begin + 600, launched=(begin + 30, begin + 35), stream=9)
        r.kernel("adam", begin + 980, begin + 1000, launched=(begin + 970, begin + 975))
    return Capture(replace(r.trace, rank=number, world_size=2))


def test_a_wait_that_takes_the_place_of_idle_is_none(recording):
    found = analyze_captures([host_bound(recording, 0, 0), host_bound(recording, 1, 280)])
    assert straggler(found) is None
    assert [r.waits_ns for r in found.ranks] == [280_000, 0]


def test_the_late_ranks_own_changes_are_the_remedy_of_a_cause_that_explains_the_waiting(recording):
    captures = []
    for number, comes in enumerate((300, 900, 300)):
        r = recording(devices=())
        r.step(1, 0, 1000)
        r.op("aten::mm", 0, comes - (350 if number == 1 else 0))
        r.annotation("gloo:all_reduce", comes, 1000, thread="gloo")
        captures.append(Capture(replace(r.trace, rank=number, world_size=3)))
    assert "even-out-ranks" not in {p.id for p in analyze_captures(captures).prescriptions}
