"""Gradient buckets of another size: hand-made steps whose numbers a reader can add up."""

import numpy as np
import pytest

from diagnose.changes import CHANGES
from diagnose.changes.common.buckets import end_of_buckets, reductions, with_buckets
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Finding
from diagnose.pipeline import what_if
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if
from diagnose.replay import build, simulate

MIB = 2**20


def reduction(r, start, end, *, elements, launched, detail="allreduce|Float|8"):
    task = r.kernel("ncclDevKernel_AllReduce_Sum_f32", start, end, stream=20, launched=launched)
    task.values |= {"size": elements, "detail": r._name(detail)}


@pytest.fixture
def one_bucket(recording):
    """A backward of 1000 µs, then 100 MiB in 1020 µs: 20 of start-up and 1000 for the bytes."""
    r = recording()
    r.step(1, 0, 1100)
    r.op("autograd::engine::evaluate_function: MmBackward0", 0, 1000)
    r.kernel("gemm", 5, 1000, launched=(0, 4))
    reduction(r, 1000, 2020, elements=25 * MIB, launched=(1000, 1000))
    return r


def replayed(t, mb):
    return simulate(with_buckets(t, mb)(build(t))).window_ns


def test_what_is_known_of_a_reduction(one_bucket):
    known = reductions(one_bucket.tables())
    assert known.num_bytes.tolist() == [100 * MIB]
    assert known.rate == pytest.approx(100 * MIB / 1_000_000)
    assert known.begin.tolist() == [0]


def test_the_recorded_size_gives_the_recorded_step(one_bucket):
    t = one_bucket.tables()
    assert replayed(t, 100) == replayed(t, 1000) == pytest.approx(2_020_000, rel=0.01)


def test_smaller_buckets_start_during_the_backward(one_bucket):
    # Halves are ready at 500 and 1000: 500 + 520 = 1020, then 520 more. Quarters at 250: 4 x 270 from there on.
    t = one_bucket.tables()
    assert replayed(t, 50) == pytest.approx(1_540_000, rel=0.01)
    assert replayed(t, 25) == pytest.approx(250_000 + 4 * 270_000, rel=0.01)


def test_too_small_buckets_pay_for_their_start(one_bucket):
    assert replayed(one_bucket.tables(), 1) == pytest.approx(10_000 + 100 * 30_000, rel=0.01)


def test_the_prescription_for_one_bucket_is_replayed_with_the_default_size(one_bucket):
    t = one_bucket.tables()
    effect = CHANGES["overlap-gradients"].effect(t, Finding("exposed-communication", "", 1_020_000))
    assert simulate(effect.most(build(t))).window_ns == pytest.approx(1_330_000, rel=0.01)
    assert "20 µs" in effect.assumption


def test_buckets_wait_for_their_gradients_and_for_each_other():
    ready, num_bytes = np.array([10.0, 40.0]), np.array([100.0, 100.0])
    # Cut in four: ready at 5, 10, 25, 40; each takes 20,000 + 50.
    assert end_of_buckets(ready, num_bytes, 0, 50, 1.0) == pytest.approx(5 + 4 * 20_050)
    assert end_of_buckets(ready, num_bytes, 0, 1e9, 1.0) == pytest.approx(40 + 20_200)


@pytest.mark.parametrize("detail", ["broadcast|Float|8", "allreduce|Unknown|8", "allreduce", ""])
def test_other_collectives_are_no_reductions(recording, detail):
    r = recording()
    r.step(1, 0, 1100)
    r.op("autograd::engine::evaluate_function: MmBackward0", 0, 1000)
    reduction(r, 1000, 2020, elements=MIB, launched=(1000, 1000), detail=detail)
    assert with_buckets(r.tables(), 25) is None


def test_waiting_for_other_ranks_is_not_replayed_away(one_bucket):
    # The same bytes take 100 times as long once: that is no matter of bytes.
    for i in range(3):
        reduction(one_bucket, 3000 + 200 * i, 3010 + 200 * i, elements=25 * MIB, launched=(1001 + i, 1001 + i))
    assert with_buckets(one_bucket.tables(), 25) is None


def test_asked_on_the_command_line(one_bucket, recording, monkeypatch):
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [one_bucket.capture()])
    answer = run_what_if("trace.json", WhatIfRequest(bucket_mb=25.0))
    assert answer.after_ns == pytest.approx(1_330_000, rel=0.01)
    assert "gradient buckets of 25 MB" in answer.text()
    plain = recording()
    plain.step(1, 0, 100)
    plain.kernel("gemm", 10, 90, launched=(0, 5))
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [plain.capture()])
    with pytest.raises(UsageError, match="no reductions with recorded sizes"):
        run_what_if("trace.json", WhatIfRequest(bucket_mb=25.0))
