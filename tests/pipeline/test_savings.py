"""What prescriptions save, replayed: numbers that a reader can add up. Times in µs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding, Prescription
from diagnose.pipeline.savings import by_value, path_of, replay_savings, waterfall


def finding(rule, lost_us, tasks=()):
    return Finding(rule, rule, lost_us * 1000, tasks=np.array(tasks, np.intp), worth_ns=lost_us * 1000)


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


def test_a_stall_goes_with_what_the_device_hid_of_it(stalled):
    # Python runs from 30 to 390, from 100 on with the device idle. Without half of it b starts 180 earlier; without all
    # of it b starts when a has ended.
    found, p = [finding("python-stall", 290)], prescription("python-stall", 145, 290)
    replayed = replay_savings(stalled, found, [p])
    (after,) = replayed.prescriptions
    assert after.basis == "replay"
    assert after.saves_ns == pytest.approx((167_750, 322_250))  # a twentieth of the middle apart
    assert after.predicted_step_ns == pytest.approx(500_000 - 245_000)
    assert replayed.on_path["python-stall"] == pytest.approx(290 / 500)


def test_faster_kernels_save_nothing_where_the_host_binds(hidden):
    # Half of each kernel's 40 goes; only the last one ends the step: 450 - 20.
    found = [finding("slow-kernel", 100, range(5))]
    (after,) = replay_savings(hidden, found, [prescription("slow-kernel", 0, 100)]).prescriptions
    assert after.saves_ns == pytest.approx((0, 20_500))


def test_what_no_graph_can_tell_stays_a_bound(stalled):
    (after,) = replay_savings(
        stalled, [finding("at-roofline", 100)], [prescription("at-roofline", 10, 20)]
    ).prescriptions
    assert after.basis == "bound"
    assert after.saves_ns == (10_000, 20_000)


def test_what_frees_the_host_saves_what_a_replay_without_it_gives(stalled):
    found, p = [finding("python-stall", 100)], prescription("python-stall", 100, 100)
    assert replay_savings(stalled, found, [p]).prescriptions[0].saves_ns == pytest.approx((294_500, 325_500))


def test_faster_kernels_save_at_most_what_they_cost(stalled):
    # Without b the step ends 90 earlier, of which the finding counts 50.
    found, p = [finding("slow-kernel", 50, [1])], prescription("slow-kernel", 50, 50)
    assert replay_savings(stalled, found, [p]).prescriptions[0].saves_ns == pytest.approx((47_500, 50_000))


def test_unlinked_launches_leave_bounds_of_what_the_host_does(recording):
    # Of two kernels none is linked: a replay without Python would start b as late as before.
    r = recording()
    r.step(1, 0, 500)
    r.op("aten::mm", 0, 30)
    r.kernel("a", 20, 100)
    r.op("aten::mm", 390, 405)
    r.kernel("b", 410, 500)
    prescribed = [prescription("python-stall", 200, 290), prescription("slow-kernel", 40, 80)]
    found = [finding("python-stall", 290), finding("slow-kernel", 80, [1])]
    replayed = replay_savings(r.tables(), found, prescribed)
    by_rule = {p.rule: (p.basis, *p.saves_ns) for p in replayed.prescriptions}
    assert by_rule["python-stall"] == ("bound", 200_000, 290_000)
    assert by_rule["slow-kernel"][0] == "replay"
    assert replayed.why_not.startswith("Only 0 % of the device tasks are linked to a launch")


def test_savings_fall_one_after_the_other_and_are_not_added(stalled):
    found = [finding("python-stall", 290), finding("slow-kernel", 85, [0, 1])]
    prescribed = [prescription("python-stall", 290, 290), prescription("slow-kernel", 85, 85)]
    replayed = replay_savings(stalled, found, prescribed)
    steps = waterfall(stalled, found, replayed)
    assert [f.title for f in steps.forecasts] == ["now", "Mend python-stall", "Mend slow-kernel"]
    # 500; without Python b follows a at 100 and takes 90; with half of both kernels a ends at 60 and b takes 45.
    assert [f.step_ns for f in steps.forecasts] == pytest.approx([500_000, 190_000, 107_125])
    alone = {p.rule: p.saves_ns[1] for p in replayed.prescriptions}
    assert alone["slow-kernel"] == pytest.approx(47_250)


def test_every_subset_of_the_changes_is_replayed_where_a_page_offers_them(stalled):
    found = [finding("python-stall", 290), finding("slow-kernel", 85, [0, 1])]
    prescribed = [prescription("python-stall", 290, 290), prescription("slow-kernel", 85, 85)]
    steps = waterfall(stalled, found, replay_savings(stalled, found, prescribed), combine=True)
    both = steps.forecasts[-1].ids
    assert [f.ids for f in steps.combinations] == [(), both[:1], both[1:], both]
    assert [f.step_ns for f in steps.combinations] == pytest.approx([500_000, 190_000, 455_000, 107_125])


def test_one_prescription_for_each_finding_falls(stalled):
    found = [finding("python-stall", 290)]
    prescribed = [prescription("python-stall", 100, 290, "large"), prescription("python-stall", 50, 60, "small")]
    steps = waterfall(stalled, found, replay_savings(stalled, found, prescribed))
    assert [f.ids for f in steps.forecasts] == [(), ("large",)]


@pytest.mark.parametrize(
    ("names", "num"), [(("compile-model", "fuse-kernels"), 1), (("compile-model", "allow-tf32"), 2)]
)
def test_of_changes_that_compile_the_model_one_falls(stalled, names, num):
    found = [finding("python-stall", 290), finding("slow-kernel", 85, [0, 1])]
    prescribed = [prescription("python-stall", 290, 290, names[0]), prescription("slow-kernel", 85, 85, names[1])]
    steps = waterfall(stalled, found, replay_savings(stalled, found, prescribed))
    assert steps.forecasts[-1].ids == names[:num]


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


def test_what_saves_most_comes_first_and_what_trains_differently_last():
    given = [
        replace(prescription("launch-bound", 60, 90, "larger-batch"), promise="other"),
        replace(prescription("data-stall", 30, 50, "load-in-workers"), promise="identical"),
        replace(prescription("launch-bound", 20, 70, "compile-graphs"), promise="rounding"),
    ]
    assert [p.id for p in sorted(given, key=by_value)] == ["compile-graphs", "load-in-workers", "larger-batch"]


def test_the_waterfall_takes_the_findings_in_their_order_and_leaves_out_what_is_worth_nothing(stalled):
    found = [finding("slow-kernel", 85, [0, 1]), finding("python-stall", 290)]
    prescribed = [prescription("python-stall", 290, 290), prescription("slow-kernel", 85, 85)]
    replayed = replay_savings(stalled, found, prescribed)
    steps = waterfall(stalled, found, replayed)
    assert [f.title for f in steps.forecasts] == ["now", "Mend slow-kernel", "Mend python-stall"]
    # 500; b takes 45 less of what ends the step; without Python a ends at 60 and b takes 45.
    assert [f.step_ns for f in steps.forecasts] == pytest.approx([500_000, 455_000, 105_000])
    only = [replace(found[0], worth_ns=0.0), found[1]]
    assert [f.title for f in waterfall(stalled, only, replayed).forecasts] == ["now", "Mend python-stall"]


def test_steps_that_are_long_now_and_then_are_a_part_of_every_step_of_the_waterfall(stalled):
    """Of a step of 800 the recorded ones hold 500; a change for the other 300 takes 100 to 200 of them.

    Without Python 474.5 to 505.5 are left. What a bound saves may be the same time: at most both are saved.
    """
    found = [finding("python-stall", 290), finding("periodic-stall", 300)]
    rare = replace(prescription("periodic-stall", 100, 200), predicted_step_ns=650_000, mean_step_ns=800_000)
    replayed = replay_savings(stalled, found, [prescription("python-stall", 290, 290), rare], 300_000)
    steps = waterfall(stalled, found, replayed, 300_000, combine=True)
    assert [f.step_ns for f in steps.forecasts] == pytest.approx([800_000, 490_000, 390_000])
    assert (steps.forecasts[-1].low_ns, steps.forecasts[-1].high_ns) == pytest.approx((274_500, 505_500))
    assert [f.step_ns for f in steps.combinations] == pytest.approx([800_000, 490_000, 650_000, 390_000])
    alone = next(p for p in replayed.prescriptions if p.rule == "python-stall")
    assert alone.predicted_step_ns == pytest.approx(490_000)
    assert alone.saves_ns == pytest.approx((294_500, 325_500))


def test_a_cold_recording_states_no_savings_of_steady_steps(recording):
    # 2000 of 3000 µs load code; the collector takes 600 more.
    r = recording()
    r.step(1, 0, 3000)
    r.op("aten::mm", 0, 100)
    r.kernel("gemm", 0, 100, launched=(-20, -15))
    for i in range(50):
        r.kernel("gemm", 2250 + i / 2, 2250.4 + i / 2, launched=(2145 + i / 2, 2145.2 + i / 2))
    r.runtime("cuModuleLoadData", 110, 2110)
    r.op("aten::mm", 2110, 2150)
    r.kernel("gemm", 2150, 2250, launched=(2140, 2145))
    r.gc(2290, 2890)
    r.op("aten::mm", 2900, 3000)
    r.kernel("gemm", 2950, 3000, launched=(2940, 2945))
    answer = r.diagnosis()
    assert answer.dominant == "warm-up"
    assert [p.id for p in answer.prescriptions][:2] == ["capture-steady-steps", "schedule-gc"]
    assert {p.saves_ns for p in answer.prescriptions} == {(0.0, 0.0)}
    assert answer.waterfall is None


@pytest.mark.parametrize(
    ("has_device", "words"),
    [(True, "the host: Python and operators between launches"), (False, "the host: Python and operators")],
)
def test_a_step_without_a_device_is_not_bound_by_what_lies_between_launches(recording, has_device, words):
    r = recording()
    for i in range(4):
        r.step(i + 1, 1000 * i, 1000 * i + 900)
        r.frame("train.py(5): slow", 1000 * i + 10, 1000 * i + 500)
        r.op("aten::mm", 1000 * i + 500, 1000 * i + 900)
        if has_device:
            r.kernel("a", 1000 * i + 520, 1000 * i + 530, launched=(1000 * i + 505, 1000 * i + 510))
    t = r.tables()
    found = [finding("python-stall", 400)]
    replayed = replay_savings(t, found, [prescription("python-stall", 200, 200)])
    assert waterfall(t, found, replayed).bound_by == words
