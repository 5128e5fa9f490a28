"""The step without the profiler: all numbers are of it. Times in µs; unprofiled ones in ms, as a capture has them."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from diagnose.model.capture import CaptureInfo
from diagnose.pipeline.run import analyze_captures
from diagnose.pipeline.true_step import factor_of_job, scaled, true_step

LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.fixture
def loading(recording):
    """Ten steps of 1000 without a device: 400 of loading, 600 of an operator."""
    r = recording(devices=())
    for i in range(10):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.annotation(LOAD, at, at + 400)
        r.op("aten::mm", at + 400, at + 1000)
    return r


@pytest.mark.parametrize("unprofiled_ms", [0.8, 1.25])
def test_steps_timed_without_the_profiler_decide(loading, unprofiled_ms):
    loading.with_info(unprofiled_ms=(unprofiled_ms,) * 4)
    d = loading.diagnosis()
    step_ns = 1e6 * unprofiled_ms
    assert (d.step_ns, d.recorded_step_ns) == (pytest.approx(step_ns), 1e6)
    assert d.profiler_overhead == pytest.approx(1 / unprofiled_ms - 1)
    (finding,) = d.findings
    assert (finding.rule, finding.lost_ns) == ("data-stall", pytest.approx(0.4 * step_ns))
    assert d.host_by_cause["data-stall"] == pytest.approx(0.4)
    assert d.waterfall.forecasts[0].step_ns == pytest.approx(step_ns)
    assert all(p.saves_ns[1] <= 0.44 * step_ns for p in d.prescriptions)


def test_it_is_their_mean(loading):
    loading.with_info(unprofiled_ms=(0.7, 0.7, 0.7, 1.5))
    assert loading.diagnosis().step_ns == pytest.approx(900_000)


def test_a_first_step_that_takes_longer_than_any_other_is_cold(loading):
    loading.with_info(unprofiled_ms=(5.0, 0.9, 0.8, 1.0))
    d = loading.diagnosis()
    assert d.step_ns == pytest.approx(900_000)
    assert d.source.unprofiled_step_ns == (900_000, 800_000, 1_000_000)


def test_without_unprofiled_steps_nothing_changes(loading):
    d = loading.diagnosis()
    assert (d.step_ns, d.recorded_step_ns, d.profiler_overhead) == (1e6, 1e6, None)
    assert d.findings[0].lost_ns == 400_000
    assert not [note for note in d.trust if note.rule == "profiler-overhead"]


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (1.04, ""),
        (0.8, "Recorded steps took 1.00 ms, 25 % longer than steps without the profiler. All times are of a step"),
        (1.25, "Recorded steps took 1.00 ms, 20 % shorter than steps without the profiler. All times are of a step"),
    ],
)
def test_its_difference_from_the_recorded_step_is_noted_once(loading, recorded, says):
    loading.with_info(unprofiled_ms=(recorded,) * 4)
    notes = [note.text for note in loading.diagnosis().trust if note.rule == "profiler-overhead"]
    assert len(notes) == bool(says)
    assert not says or notes[0].replace(".0 %", " %").startswith(says)


def with_rare_steps(r, run_steps, num=160):
    """Of the run's steps of 1 ms every sixteenth takes 10 ms longer: of the 158 after the warm-up ten."""
    took = [11.0 if i % 16 == 15 else 1.0 for i in range(num)]
    r.run = run_steps(took, checkpoint=[10.0 * (t > 1) for t in took], backwards=[1] * num)
    return 10 * 10.0 / 158


def test_steps_that_are_long_now_and_then_are_part_of_the_mean(loading, run_steps):
    rare_ms = with_rare_steps(loading, run_steps)
    d = loading.diagnosis()
    assert d.step_ns == pytest.approx(1e6 * (1 + rare_ms))
    assert d.profiler_overhead == pytest.approx(0)  # the usual step is as long as the recorded one
    lost = {f.rule: f.lost_ns for f in d.findings}
    assert lost == {"periodic-stall": pytest.approx(1e6 * rare_ms), "data-stall": pytest.approx(400_000)}
    assert np.mean(d.source.unprofiled_step_ns) == pytest.approx(d.step_ns)


def test_a_long_step_in_the_window_counts_as_often_as_it_comes(recording, run_steps):
    """Nine steps of 1000 and one of 11 000 were recorded, where one in sixteen is so long."""
    r = recording(devices=())
    now = 0
    for i in range(10):
        took = 11_000 if i == 5 else 1000
        r.step(i + 1, now, now + took)
        r.op("aten::mm", now, now + took)
        now += took
    rare_ms = with_rare_steps(r, run_steps)
    t = r.tables()
    true = true_step(t)
    assert t.steps.step_ns == 2e6
    assert true.mean_ns == pytest.approx(1e6 * (1 + rare_ms))
    assert true.rare_ns == pytest.approx(0, abs=1)  # all of it is in the window, which is scaled to the mean


def test_a_device_s_few_unprofiled_steps_hold_no_long_ones(late, run_steps):
    """Those ten right before the recording took 1 ms each; the run's mean has the long ones."""
    rare_ms = with_rare_steps(late, run_steps)
    late.with_info(unprofiled_ms=(1.0,) * 10)
    true = true_step(late.tables())
    assert (true.usual_ns, true.mean_ns) == (pytest.approx(1e6), pytest.approx(1e6 * (1 + rare_ms)))
    late.with_info(unprofiled_ms=(1.0,) * 9 + (11.0,))  # one of them is long: their mean has it already
    assert true_step(late.tables()).mean_ns == pytest.approx(2e6)


def moved(late, factor):
    """Return start and end of the kernels in a step that is idle from 300 to 700 of 1000, scaled."""
    trace = scaled(late.tables(), factor).trace
    rows = [i for i, name in enumerate(trace.events.name) if trace.names[name] in ("gemm", "relu")]
    return [(int(trace.events.start[i]), int(trace.events.end[i])) for i in rows]


@pytest.mark.parametrize(
    ("factor", "kernels"),
    [
        (0.8, [(0, 300_000), (500_000, 800_000)]),  # 200 of 400 idle are left
        (1.5, [(0, 300_000), (1_200_000, 1_500_000)]),  # 900 instead of 400
        (0.5, [(0, 150_000), (350_000, 500_000)]),  # more than is idle: everything is shorter
    ],
)
def test_the_device_s_own_work_keeps_its_length_and_idle_time_changes(late, factor, kernels):
    assert moved(late, factor) == kernels


def test_what_the_host_did_meanwhile_moves_along(late):
    """Its calls before the gap stay; what ran in the gap takes half as long."""
    late.sample(500)
    late.sample(900)
    t = late.tables()
    capture = scaled(t, 0.8)
    events = capture.trace.events
    calls = [i for i, name in enumerate(events.name) if capture.trace.names[name] == "cudaLaunchKernel"]
    assert [(int(events.start[i]), int(events.end[i])) for i in calls] == [(-20_000, -15_000), (495_000, 497_500)]
    assert [int(at) - late.epoch_ns for at in capture.samples.time_ns] == [400_000, 700_000]
    assert capture.recorded_step_ns == 1e6
    assert capture.unmoved_samples is t.capture.samples  # as recorded, for the steps of the run


@pytest.mark.parametrize(
    ("ranks", "factor"),
    [
        ([((1.0, 3.0), (1.0, 1.0))], 0.5),
        ([((2.0,), (1.8,)), ((2.0,), (1.6,)), ((2.0,), (0.4,))], 0.8),  # the median of 0.9, 0.8 and 0.2
        ([((2.0,), (9.0, 1.0, 1.0))], 0.5),  # the first is cold
        ([((2.0,), ()), ((2.0,), (1.0,))], 0.5),
        ([((2.0,), ()), ((), (1.0,))], 0.0),
    ],
)
def test_the_factor_of_a_job_is_in_the_descriptions_of_its_captures(ranks, factor):
    infos = [msgspec.convert({"light_ms": light, "unprofiled_ms": plain}, CaptureInfo) for light, plain in ranks]
    assert factor_of_job(infos) == pytest.approx(factor)


def ranks(late, recording, *unprofiled):
    """Return steps of 1000 and of 1500 in two ranks, idle from 300 to 700."""
    other = recording()
    other.step(1, 0, 1000)
    other.op("aten::mm", 0, 200)
    other.kernel("gemm", 0, 300, launched=(-20, -15))
    other.op("aten::relu", 690, 1000)
    other.kernel("relu", 700, 1500, launched=(690, 695))
    captures = []
    for rank, (r, ms) in enumerate(zip((late, other), unprofiled, strict=True)):
        r.with_info(world_size=2, light_ms=(1 + rank / 2,), unprofiled_ms=(ms,) * 4 if ms else ())
        captures.append(replace(r.capture(), trace=replace(r.trace, rank=rank, world_size=2)))
    return captures


@pytest.mark.parametrize(
    ("unprofiled", "factor"),
    [((0.9, 1.2), 0.85), ((0.9, 0), 0.9), ((0, 0), 1.0)],  # of 0.9 and 0.8, of one, of none
)
def test_ranks_are_scaled_alike_as_they_wait_for_each_other(late, recording, unprofiled, factor):
    d = analyze_captures(ranks(late, recording, *unprofiled), draw=False)
    assert [r.step_ns for r in d.ranks] == [pytest.approx(1e6 * factor), pytest.approx(1.5e6 * factor)]
    assert d.step_ns == pytest.approx(1.5e6 * factor)
    assert d.recorded_step_ns == 1.5e6
