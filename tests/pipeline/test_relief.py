"""What a step without a finding's cause would save, and what follows for the answer. Times in µs."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.capture import Samples
from diagnose.model.forecast import middle_ns
from diagnose.pipeline.find import find_in_rank
from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.savings import effect_in, replay_savings


def test_a_wait_that_takes_the_lead_is_named_though_idle_comes_later(recording):
    # Each step of 1000 µs launches 10 kernels in 700 µs and waits for the last of 290. The device idles for 8 µs after
    # the wait, and for 10 before each kernel of 60, since the host has no lead.
    r = recording()
    for i in range(5):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::linear", at, at + 704)
        for k in range(10):
            begun = at + 70 * k
            r.kernel("gemm", begun + 8, begun + 68 if k < 9 else at + 999, launched=(begun + 1, begun + 5))
        r.runtime("cudaStreamSynchronize", at + 705, at + 1000)
    answer = r.diagnosis()
    finding = next(f for f in answer.findings if f.rule == "host-sync")
    assert finding.lost_ns < 10_000
    assert finding.relief_ns > 90_000
    assert answer.dominant == "host-sync"


def loading(recording, *, marked=True):
    """Return steps of 1000 µs that wait 500 for a worker, and launch a kernel late."""
    r = recording()
    for i in range(4):
        at = 1000 * i
        if marked:
            r.step(i + 1, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + 500)
        r.op("aten::linear", at + 510, at + 990)
        r.kernel("gemm", at + 803, at + 1000, launched=(at + 795, at + 800))
    return r


def test_where_workers_pace_the_step_nothing_else_makes_it_shorter(recording):
    answer = loading(recording).diagnosis()
    relief = {f.rule: f.relief_ns for f in answer.findings}
    assert answer.dominant == "data-stall"
    assert relief["launch-bound"] == 0
    assert relief["data-stall"] > 400_000
    assert {p.saves_ns for p in answer.prescriptions if p.rule == "launch-bound"} <= {(0.0, 0.0)}


def test_workers_pace_the_step_also_where_no_step_is_marked(recording):
    answer = loading(recording, marked=False).diagnosis()
    assert {f.rule: f.relief_ns for f in answer.findings}["launch-bound"] == 0


@pytest.mark.parametrize("alone", [True, False])
def test_what_a_step_without_collectives_takes_one_rank_alone_does_not_show(recording, alone):
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.kernel("gemm", at, at + 400, launched=(at - 20, at - 15))
        r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 400, at + 990, launched=(at - 10, at - 5), stream=9)
    (finding,) = (f for f in analyze_rank(r.capture(), alone=alone).findings if f.rule == "exposed-communication")
    assert (finding.relief_ns is None) == alone


@pytest.mark.parametrize("noted", [False, True])
def test_python_without_its_collections_saves_what_python_takes(recording, noted):
    # Of the 600 µs between two operators of each step the collector runs for 500.
    r = recording()
    for i in range(4):
        at = 2000 * i
        r.step(i + 1, at, at + 2000)
        r.op("aten::linear", at + 1900, at + 1990)
        r.kernel("gemm", at + 1995, at + 3190, launched=(at + 1980, at + 1985))
        if not noted:
            r.gc(at + 50, at + 1750)
    runs = tuple((r.epoch_ns + 1000 * (2000 * i + 50), r.epoch_ns + 1000 * (2000 * i + 1750)) for i in range(4))
    samples = Samples(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8), (), runs)
    capture = replace(r.capture(), samples=samples) if noted else r.capture()
    relief = {f.rule: f.relief_ns or 0.0 for f in analyze_rank(capture).findings}
    assert relief["gc-pause"] > 400_000
    assert relief.get("python-stall", 0.0) < 250_000


def test_where_much_idle_time_has_no_cause_a_change_saves_what_its_finding_costs_at_most(recording):
    # The device idles 900 of each 4000 µs with the next kernel queued, and 1900 for Python before a late launch.
    r = recording()
    for i in range(5):
        at = 4000 * i
        r.step(i + 1, at, at + 4000)
        r.op("aten::linear", at + 5, at + 100)
        for k in range(10):
            r.kernel("gemm", at + 120 + 200 * k, at + 220 + 200 * k, launched=(at + 10 + 5 * k, at + 12 + 5 * k))
        r.op("aten::linear", at + 3900, at + 3990)
        r.kernel("gemm", at + 3950, at + 4000, launched=(at + 3940, at + 3945))
    found = find_in_rank(r.capture())
    prescription = next(p for p in found.prescribed if p.rule == "launch-bound")
    finding = next(f for f in found.findings if f.rule == "launch-bound")
    assert effect_in(found.tables, finding, prescription).limit_ns == finding.lost_ns < found.tables.steps.step_ns


@pytest.mark.parametrize("known", [False, True])
def test_kernels_hide_behind_the_host_no_longer_than_without_the_profiler(recording, known):
    """40 products of 19 µs each are launched every 20 µs, of which an operator and its call take 4 to be recorded."""
    r = recording()
    for i in range(4):
        at = 800 * i
        r.step(i + 1, at, at + 800)
        for begun in range(at, at + 800, 20):
            r.op("aten::mm", begun, begun + 19)
            r.kernel("ampere_sgemm_128x64", begun + 8, begun + 27, launched=(begun + 2, begun + 6))
    if known:
        r.with_info(light_ms=(0.8,) * 4, unprofiled_ms=(0.8,) * 4)
    rank = find_in_rank(r.capture())
    saved_ns = replay_savings(rank.tables, rank.findings, ()).relief_ns["full-precision-matmul"]
    assert saved_ns == pytest.approx(0 if known else 160_000, abs=5_000)


def test_a_copy_is_worth_the_middle_of_what_hiding_it_saves(recording):
    r = recording()
    for i in range(5):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        took = 180 + 10 * i
        r.copy("Memcpy HtoD (Pageable -> Device)", at + 10, at + 10 + took, size=1 << 20, launched=(at, at + 20 + took))
        r.op("aten::linear", at + 20 + took, at + 990)
        r.kernel("gemm", at + 40 + took, at + 1000, launched=(at + 30 + took, at + 35 + took))
    answer = r.diagnosis()
    (p,) = (p for p in answer.prescriptions if p.rule == "exposed-copy")
    finding = next(f for f in answer.findings if f.rule == "exposed-copy")
    assert p.saves_ns[0] < p.saves_ns[1]
    assert finding.relief_ns == pytest.approx(middle_ns(*p.saves_ns))
