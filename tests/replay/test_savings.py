"""What prescriptions save, replayed: numbers that a reader can add up. Times in µs."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding, Prescription
from diagnose.pipeline.savings import path_of, replay_savings, waterfall
from diagnose.replay.build import build
from diagnose.replay.remove_cause import remove_cause
from diagnose.replay.simulate import owners, period_ns, simulate
from diagnose.replay.step_subset import step_subset


def finding(rule, lost_us, tasks=()):
    return Finding(rule, rule, lost_us * 1000, tasks=np.array(tasks, np.intp))


def prescription(rule, least_us, most_us, name=""):
    return Prescription(
        rule, name or f"mend-{rule}", f"Mend {rule}", "", "", (least_us * 1000, most_us * 1000), None, ""
    )


@pytest.fixture
def stalled(recording):
    """A step in which Python runs from 110 to 390 with the device idle from 100 to 410, then a kernel to 500."""
    r = recording()
    r.step(1, 0, 405)
    r.op("aten::mm", 0, 30)
    r.kernel("a", 20, 100, launched=(10, 15))
    r.op("aten::mm", 390, 405)
    r.kernel("b", 410, 500, launched=(400, 405))
    return r.tables()


@pytest.fixture
def hidden(recording):
    """A step that the host binds: kernels of 40 launched every 100; the last ends at 450."""
    r = recording()
    r.step(1, 0, 405)
    for i in range(5):
        r.op("aten::mm", 100 * i, 100 * i + (95 if i < 4 else 5))
        r.kernel("volta_sgemm", 100 * i + 10, 100 * i + 50, launched=(100 * i, 100 * i + 5))
    return r.tables()


def test_half_of_a_stall_saves_half_of_it(stalled):
    # Python takes 290 of the step; without half of it b is launched at 400 - 145 = 255, starts at 265, ends at 355.
    found, p = [finding("python-stall", 290)], prescription("python-stall", 145, 290)
    replayed = replay_savings(stalled, found, [p])
    (after,) = replayed.prescriptions
    assert after.basis == "replay"
    assert after.saves_ns == pytest.approx((145_000, 290_000))
    assert after.predicted_step_ns == pytest.approx(500_000 - 217_500)
    assert replayed.on_path["python-stall"] == pytest.approx(290 / 500)


def test_faster_kernels_save_nothing_where_the_host_binds(hidden):
    # Half of each kernel's 40 goes; only the last one ends the step: 450 - 20.
    found = [finding("slow-kernel", 100, range(5))]
    (after,) = replay_savings(hidden, found, [prescription("slow-kernel", 0, 100)]).prescriptions
    assert after.saves_ns == pytest.approx((0, 20_000))


def test_what_no_graph_can_tell_stays_a_bound(stalled):
    (after,) = replay_savings(
        stalled, [finding("at-roofline", 100)], [prescription("at-roofline", 10, 20)]
    ).prescriptions
    assert after.basis == "bound"
    assert after.saves_ns == (10_000, 20_000)


def test_a_saving_is_at_most_what_the_cause_costs(stalled):
    found, p = [finding("python-stall", 100)], prescription("python-stall", 100, 100)
    assert replay_savings(stalled, found, [p]).prescriptions[0].saves_ns == pytest.approx((100_000, 100_000))


def test_savings_fall_one_after_the_other_and_are_not_added(stalled):
    found = [finding("python-stall", 290), finding("slow-kernel", 85, [0, 1])]
    prescribed = [prescription("python-stall", 290, 290), prescription("slow-kernel", 85, 85)]
    replayed = replay_savings(stalled, found, prescribed)
    falls = waterfall(stalled, found, replayed)
    assert [f.title for f in falls.forecasts] == ["now", "Mend python-stall", "Mend slow-kernel"]
    # 500; without Python b is launched at 110, starts at 120 and takes 90; with both halved b takes 45.
    assert [f.step_ns for f in falls.forecasts] == pytest.approx([500_000, 210_000, 165_000])
    alone = {p.rule: p.saves_ns[1] for p in replayed.prescriptions}
    assert alone["slow-kernel"] == pytest.approx(45_000)


def test_one_prescription_for_each_finding_falls(stalled):
    found = [finding("python-stall", 290)]
    prescribed = [prescription("python-stall", 100, 290, "large"), prescription("python-stall", 50, 60, "small")]
    falls = waterfall(stalled, found, replay_savings(stalled, found, prescribed))
    assert [f.ids for f in falls.forecasts] == [(), ("large",)]


def test_nothing_to_gain_is_no_waterfall(hidden):
    found = [finding("slow-kernel", 1)]
    assert waterfall(hidden, found, replay_savings(hidden, found, [prescription("slow-kernel", 0, 1)])) is None


def test_the_drawn_path_is_a_chain_over_the_step(stalled):
    path = path_of(stalled, replay_savings(stalled, [finding("python-stall", 290)], []))
    assert [(p.start_ns, p.end_ns, p.category) for p in path.pieces] == [
        (0, 400_000, "host"),
        (400_000, 410_000, "latency"),
        (410_000, 500_000, "compute"),
    ]
    assert path.pieces[-1].name == "b"


def test_exposed_copies_shrink_by_their_exposed_time(recording):
    # The copy takes 100, of which 60 lie under the kernel of the other stream.
    r = recording()
    r.step(1, 0, 20)
    r.copy("Memcpy HtoD (Pinned -> Device)", 20, 120, stream=8, launched=(5, 8))
    r.kernel("a", 20, 80, stream=7, launched=(10, 12))
    r.kernel("b", 120, 300, stream=8, launched=(14, 16))
    t = r.tables()
    change = remove_cause(t, finding("exposed-copy", 40), "copy", 1.0)
    assert simulate(change(build(t))).window_ns == pytest.approx(260_000)


def test_pauses_shrink(recording):
    r = recording()
    r.step(1, 0, 20)
    r.kernel("a", 0, 50, launched=(-9, -5))
    r.kernel("b", 54, 100, launched=(9, 12))
    t = r.tables()
    assert t.causes.totals()["kernel-latency"] == 4_000
    change = remove_cause(t, finding("kernel-latency", 4), "pause", 0.5)
    assert simulate(change(build(t))).window_ns == pytest.approx(98_000)


def test_a_few_steps_stand_for_all(recording):
    r = recording()
    for i in range(20):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.op("aten::mm", 100 * i, 100 * i + 20)
        r.kernel("a", 100 * i + 20, 100 * i + 60, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    part = step_subset(t, most_tasks=4)
    assert part.steps.num == 4
    assert len(part.tasks.row) == 4
    assert part.steps.step_ns == pytest.approx(t.steps.step_ns, rel=0.02)
    assert step_subset(t).steps.num == 5  # more steps say the same
    assert step_subset(t, most_tasks=0).steps.num == 1


def test_few_steps_are_taken_whole(stalled):
    assert step_subset(stalled) is stalled


def test_a_step_is_the_time_from_end_to_end(recording):
    """The device is 50 behind at the end: that is no part of a step, though it is of the window."""
    r = recording()
    for i in range(4):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.kernel("a", 100 * i + 60, 100 * i + 150, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    graph = build(t)
    assert t.steps.step_ns == 112_500
    assert period_ns(graph, simulate(graph), owners(t, graph)) == pytest.approx(100_000)


def test_work_queued_before_the_chosen_steps_is_left_out(recording):
    """A device a whole step behind the host: the window is the time in which it works on what they launched."""
    r = recording()
    for i in range(10):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.kernel("a", 100 * i + 130, 100 * i + 230, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    part = step_subset(t, most_tasks=2)
    assert part.steps.num == 2
    assert part.steps.step_ns == pytest.approx(100_000)
