"""reduced-again: gradients of micro-batches are reduced over ranks one by one. Times in µs."""

from dataclasses import replace

import pytest

from diagnose.pipeline.run import analyze_captures
from tests.ranks.test_reduced import accumulate

LINES = {("train.py", 9): "loss.backward()"}


def captures(recording, *, ends, num=4):
    """Return two ranks whose steps of 1000 µs reduce four times; a rank comes to each at the given times."""
    made = []
    for rank, arrives in enumerate(ends):
        r = recording(devices=())
        for step in range(6):
            begin = 1000 * step
            r.step(step + 1, begin, begin + 1000)
            for k, at in enumerate(arrives):
                start, until = begin + 250 * k, begin + 250 * (k + 1)
                r.op("autograd::engine::evaluate_function: MmBackward0", start, begin + at)
                r.op("c10d::allreduce_", begin + at - 1, begin + at)
                r.annotation("DistributedDataParallel.forward", start, start + 1)
                r.annotation("gloo:all_reduce", begin + at, until, thread="gloo")
        capture = r.capture()
        trace = replace(capture.trace, rank=rank, world_size=2)
        made.append(replace(capture, trace=trace, dataflow=accumulate(num), lines=LINES))
    return made


def test_ranks_that_wait_in_turns_wait_once(recording):
    # each comes first to two of the reductions, by 50 µs, and a transfer takes 20: three of four go, with their waits
    ends = [(180, 480, 680, 980), (230, 430, 730, 930)]
    answer = analyze_captures(captures(recording, ends=ends))
    finding = next(f for f in answer.findings if f.rule == "reduced-again")
    assert finding.title == "Gradients are reduced over ranks 4 times per step, although only their sum is read"
    assert [(w.line, w.code) for w in finding.where] == [(9, "loss.backward()")]
    assert finding.lost_ns == pytest.approx((3 * 20 + 2 * 50) * 1000, rel=0.1)
    assert "reduce-last" in [p.id for p in answer.prescriptions]


def test_one_reduction_per_step_is_needed(recording):
    answer = analyze_captures(captures(recording, ends=[(180,), (230,)], num=1))
    assert not [f for f in answer.findings if f.rule == "reduced-again"]
