"""stage-turns: stages of a pipeline that wait for each other's answer to every micro-batch."""

from dataclasses import replace

import pytest

from diagnose.pipeline.run import analyze_captures


def stage(recording, number, *, num=4, work=100, wait=100, sends_first):
    """Return a stage that works and waits in turns, ``num`` times in each of 3 steps; times are µs."""
    r = recording(devices=())
    length = num * (work + wait)
    for step in range(3):
        r.step(step + 1, length * step, length * (step + 1))
        for micro in range(num):
            at = length * step + micro * (work + wait)
            if sends_first:
                r.op("aten::mm", at, at + work)
                r.op("c10d::send", at + work, at + work + 1)
                r.annotation("gloo:recv", at + work, at + work + wait, thread="gloo")
            else:
                r.op("c10d::recv_", at, at + 1)
                r.annotation("gloo:recv", at, at + wait, thread="gloo")
                r.op("aten::mm", at + wait, at + wait + work - 2)
                r.op("c10d::send", at + wait + work - 2, at + wait + work)
    capture = r.capture()
    return replace(capture, trace=replace(capture.trace, rank=number, world_size=2))


def found_in(recording, **options):
    ranks = [stage(recording, 0, sends_first=True, **options), stage(recording, 1, sends_first=False, **options)]
    answer = analyze_captures(ranks)
    return answer, next((f for f in answer.findings if f.rule == "stage-turns"), None)


def test_two_stages_that_work_in_turns(recording):
    answer, finding = found_in(recording)
    # each works 400 of 800 µs: 100 of a micro-batch; overlapped, both take 100 + 4 × 100
    assert finding.lost_ns == pytest.approx(300_000, rel=0.02)
    assert finding.evidence[0].startswith("1.0 of 2 stages work at once. Rank 0 sends a micro-batch and waits for what")
    assert finding.evidence[0].endswith(": 4 micro-batches a step.")
    assert answer.findings[0] is finding
    assert [p.id for p in answer.prescriptions if p.rule == "stage-turns"] == ["pipeline-forwards"]


def test_a_batch_that_is_sent_whole_is_to_be_cut(recording):
    answer, finding = found_in(recording, num=1, work=400, wait=400)
    assert finding.facts["num_micro"] == 1
    assert finding.lost_ns == pytest.approx(300_000, rel=0.02)  # as 4 micro-batches
    assert [p.id for p in answer.prescriptions if p.rule == "stage-turns"] == ["cut-into-micro-batches"]


def test_stages_that_overlap_have_nothing_to_gain(recording):
    # each works 400 of 500 µs, as four micro-batches that follow each other do
    assert found_in(recording, wait=25)[1] is None


def test_transfers_are_not_overlapped_by_it(recording):
    """Each works 40 and waits 160: for as long as nobody works, bytes are under way."""
    finding = found_in(recording, work=40, wait=160)[1]
    # 160 µs of work each become 40 + 4 × 40, and the 480 in which no stage works stay
    assert finding.lost_ns == pytest.approx(800_000 - (200_000 + 480_000), rel=0.05)
