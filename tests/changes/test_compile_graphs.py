"""compile-graphs: what captured launches save of the host's work."""

import pytest

from diagnose.changes.common.prescribe import effect_of
from diagnose.changes.compile_graphs import CHANGE, GUARDS_NS
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.events import Device
from diagnose.replay.build import build
from diagnose.tables.program import Program

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
FINDING = Finding("launch-bound", "", 20_000, facts={"has_device": True})


def effect_in(t):
    """Return what capturing graphs does for a finding of 20 µs a step."""
    return effect_of(t, FINDING, Prescription(FINDING.rule, "compile-graphs", "", "", "", (6_000, 18_000), None, ""))


def test_graphs_take_hidden_host_work_too_but_not_what_has_a_finding_of_its_own(recording):
    # Operators take 400 of each 1000 us, of which the device hides all but 20; during 100 of them the collector runs,
    # and Python takes the rest. Without the operators' 300 us the host is done that much earlier.
    r = recording(devices=[A100])
    for i in range(10):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::mm", at, at + 400)
        r.gc(at + 100, at + 200)
        r.kernel("gemm", at + 395, at + 1375, launched=(at + 380, at + 390))
    t = r.tables()
    effect = effect_in(t)
    assert effect.limit_ns == t.steps.step_ns
    shorter = build(t).duration.sum() - effect.most(build(t)).duration.sum()
    assert shorter == pytest.approx(10 * (300_000 - GUARDS_NS[1]), rel=0.05)


def test_beside_calls_that_give_memory_back_graphs_save_what_a_replay_shows(recording):
    # cudaFree waits for the kernel of the step before, as the replay does: no limit is needed.
    r = recording(devices=[A100])
    for i in range(5):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::mm", at, at + 400)
        r.runtime("cudaFree", at + 100, at + 375)
        r.kernel("gemm", at + 395, at + 1375, launched=(at + 380, at + 390))
    assert effect_in(r.tables()).limit_ns == 1_000_000


def test_zero_grad_stays_outside_of_the_graphs(recording):
    r = recording(devices=[A100])
    for i in range(5):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.annotation("Optimizer.zero_grad#SGD.zero_grad", at, at + 400)
        r.op("aten::zero_", at, at + 400)
        r.op("aten::mm", at + 400, at + 900)
        r.kernel("gemm", at + 895, at + 980, launched=(at + 880, at + 890))
    t = r.tables()
    shorter = build(t).duration.sum() - effect_in(t).most(build(t)).duration.sum()
    assert shorter == pytest.approx(5 * (500_000 - GUARDS_NS[1]), rel=0.05)


def test_no_graph_where_a_tensor_grows_from_step_to_step():
    assert not CHANGE.applies(Program(grows=True), FINDING)
    assert CHANGE.applies(Program(), FINDING)
