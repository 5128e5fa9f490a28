"""Steps moved to where they would have been without the profiler, from steps whose recording cost is planted."""

import numpy as np
import pytest

from diagnose.model.capture import Capture, RunSteps
from diagnose.model.events import Kind
from diagnose.pipeline.find import build_tables, tables_without_recording
from diagnose.pipeline.true_step import as_unrecorded
from diagnose.replay.unrecorded import unrecorded
from diagnose.text.numbers import duration

NUM = 40  # launches of a step
OP_US, CALL_US = 6.0, 4.0  # of an operator without its call, and of the call in it
KERNEL_US = 3.0


def steps(recording, cost_us, *, kernel_us=KERNEL_US, op_us=OP_US, num_steps=4):
    """Return a capture of steps whose operators take ``cost_us`` longer each, and their calls three times as much.

    The stepping thread queues NUM kernels, each of which starts 5 µs after its call began or when the one before it
    ends, and waits for nothing.
    """
    r = recording()
    now, free = 0.0, 0.0
    for number in range(num_steps):
        began = now
        for _ in range(NUM):
            op_ends = now + op_us + cost_us + CALL_US + 3 * cost_us
            call = now + op_us / 2 + cost_us
            r.op("aten::mul", now, op_ends)
            start = max(call + 5 + min(cost_us, 2.0), free + 1.5)
            r.kernel("mul", start, start + kernel_us, launched=(call, call + CALL_US + 3 * cost_us))
            free, now = start + kernel_us, op_ends
        r.step(number, began, now)
    return r


def per_step_ms(tables):
    return tables.steps.step_ns / 1e6


@pytest.mark.parametrize("cost_us", [0.5, 1.0, 2.5])
def test_the_cost_of_an_event_is_found_and_taken_out(recording, cost_us):
    bare, made = steps(recording, 0.0).tables(), steps(recording, cost_us).tables()
    found = unrecorded(made, bare.steps.step_ns)
    assert found.event_cost_ns == pytest.approx(1000 * cost_us, rel=0.15)
    again = build_tables(found.capture, found.capture.trace)
    assert per_step_ms(again) == pytest.approx(per_step_ms(bare), rel=0.02)
    assert again.queue.idle_share == pytest.approx(bare.queue.idle_share, abs=0.05)


def test_events_keep_their_order_and_their_launches(recording):
    made = steps(recording, 2.0).tables()
    trace = unrecorded(made, steps(recording, 0.0).tables().steps.step_ns).capture.trace
    events = trace.events
    assert (np.diff(events.start) >= 0).all()
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    calls = events.cause[kernels]
    assert (events.kind[calls] == Kind.RUNTIME).all()
    assert (events.correlation[calls] == events.correlation[kernels]).all()
    assert (events.start[kernels] > events.start[calls]).all()
    inner = np.flatnonzero(events.kind == Kind.OP)
    for call in calls[:5].tolist():  # inside their operators, as recorded
        assert ((events.start[inner] <= events.start[call]) & (events.end[inner] >= events.end[call])).any()


def test_a_full_device_has_nothing_to_take_out(recording):
    made = steps(recording, 1.0, kernel_us=40.0).tables()
    assert unrecorded(made, made.steps.step_ns) is None


def test_a_full_device_hides_a_cost_that_the_quickest_steps_of_the_host_show(recording):
    made = steps(recording, 1.0, kernel_us=40.0)
    bare_ns = 1000 * NUM * (OP_US + CALL_US)
    t = made.tables()
    found = unrecorded(t, t.steps.step_ns, host_ns=bare_ns)
    assert found.event_cost_ns == pytest.approx(1000, rel=0.15)
    assert found.step_ns == pytest.approx(t.steps.step_ns, rel=0.01)
    assert unrecorded(t, t.steps.step_ns, host_ns=2 * bare_ns) is None


def test_the_steps_of_the_run_show_it(recording):
    """One step in eight runs behind a wait for the device; the others take as long as the device does."""
    made = steps(recording, 1.0, kernel_us=40.0)
    ms = per_step_ms(made.tables())
    made.with_info(light_ms=(ms,) * 4, unprofiled_ms=(ms,) * 4, settled_after=0)
    took = np.full(16, int(1e6 * ms))
    took[::8] = 1000 * NUM * (OP_US + CALL_US)
    made.run = RunSteps(np.cumsum(took), took, np.zeros(16, np.int8), {}, device_ns=np.full(16, int(1e6 * ms)))
    assert tables_without_recording(made.capture()).capture.event_cost_ns == pytest.approx(1000, rel=0.15)


def test_a_wait_behind_the_last_launch_ends_with_the_device(recording):
    r = steps(recording, 1.0, kernel_us=40.0)
    t = r.tables()
    device_ends = t.tasks.end.max() / 1000
    r.runtime("cudaDeviceSynchronize", t.steps.end[-1] / 1000 + 1, device_ends + 5)
    moved = unrecorded(r.tables(), 1e12, host_ns=1000 * NUM * (OP_US + CALL_US)).capture.trace
    events, names = moved.events, np.array(moved.names)
    wait = names[events.name] == "cudaDeviceSynchronize"
    assert (events.end[wait] >= events.end[events.kind == Kind.KERNEL].max()).all()


def test_what_recording_cannot_explain_stays(recording):
    made = steps(recording, 0.0, op_us=300.0).tables()  # operators that compute
    assert unrecorded(made, 0.5 * made.steps.step_ns) is None


def test_what_the_least_disturbed_steps_show_is_taken_out_where_others_were_slowed_by_something_else(recording):
    bare, made = steps(recording, 0.0).tables(), steps(recording, 2.0).tables()
    added = made.steps.step_ns - bare.steps.step_ns
    assert unrecorded(made, bare.steps.step_ns - 3 * added) is None
    found = unrecorded(made, bare.steps.step_ns - 3 * added, added)
    assert found.event_cost_ns == pytest.approx(2000, rel=0.15)
    assert found.step_ns == pytest.approx(bare.steps.step_ns, rel=0.02)


def test_samples_move_with_the_work_they_were_taken_of(recording):
    r = steps(recording, 2.0)
    r.sample(400.0)
    made = r.tables()
    found = unrecorded(made, steps(recording, 0.0).tables().steps.step_ns)
    assert found.capture.run_samples is made.capture.samples  # for the steps of the run, which stay where they were
    share = 400.0 * 1000 / made.steps.end[-1]
    assert (found.capture.samples.time_ns[0] - r.epoch_ns) / found.capture.trace.events.end.max() == pytest.approx(
        share, abs=0.02
    )
    assert isinstance(found.capture, Capture)


def test_the_diagnosis_is_of_the_step_without_its_recording(recording):
    bare, r = steps(recording, 0.0), steps(recording, 2.5)
    ms = per_step_ms(bare.tables())
    r.with_info(light_ms=(per_step_ms(r.tables()),) * 4, unprofiled_ms=(ms,) * 4)
    d = r.diagnosis()
    assert d.step_ns / 1e6 == pytest.approx(ms)
    assert d.recorded_step_ns / 1e6 == pytest.approx(per_step_ms(r.tables()))
    assert d.profiler_overhead == pytest.approx(1.0, abs=0.01)
    (note,) = [n.text for n in d.trust if n.rule == "profiler-overhead"]
    assert note == (
        f"Recorded steps took {duration(d.recorded_step_ns)}, 99.9 % longer than steps without the profiler. All times "
        f"are of a step without it, {duration(d.step_ns)}."
    )


def test_what_recording_costs_is_taken_out_where_it_lies_before_the_rest_is_scaled(recording):
    """Kernels keep their 3 µs; the time between them is the host's, which is half of what was recorded."""
    bare, r = steps(recording, 0.0), steps(recording, 2.5)
    ms = per_step_ms(bare.tables())
    r.with_info(light_ms=(per_step_ms(r.tables()),) * 4, unprofiled_ms=(ms,) * 4)
    t = tables_without_recording(r.capture())
    assert t.capture.event_cost_ns == pytest.approx(2500, rel=0.15)
    assert t.steps.step_ns / 1e6 == pytest.approx(ms)
    assert t.queue.idle_share == pytest.approx(bare.tables().queue.idle_share, abs=0.01)


def test_the_sentence_about_it_states_the_step_of_the_first_screen(recording):
    """One of ten steps does the work of four, so the mean step is no median one."""
    r = recording(devices=())
    now = 0.0
    for number in range(10):
        began = now
        for _ in range(1000 if number == 4 else 250):
            r.op("aten::add", now, now + 3)
            now += 4
        r.step(number + 1, began, now)
    r.with_info(light_ms=(1.0,) * 10, unprofiled_ms=(0.75,) * 10)
    d = r.diagnosis()
    (note,) = [n.text for n in d.trust if n.rule == "profiler-overhead"]
    assert note.endswith(f"All times are of a step without it, {duration(d.step_ns)}.")
    assert (d.step_ns, d.recorded_step_ns) == (pytest.approx(750_000), 1_300_000)


def test_of_several_ranks_no_event_s_cost_is_taken_out_as_they_wait_for_each_other(recording):
    r = steps(recording, 2.5)
    ms = per_step_ms(r.tables())
    r.with_info(light_ms=(ms,) * 4, unprofiled_ms=(ms / 2,) * 4, world_size=2)
    t = tables_without_recording(r.capture())
    assert t.capture.event_cost_ns == 0
    assert t.steps.step_ns / 1e6 == pytest.approx(ms / 2)


def test_how_much_less_an_event_may_cost_follows_what_recording_certainly_added(recording):
    bare, made = steps(recording, 0.0).tables().steps.step_ns, steps(recording, 2.0).tables()
    added = made.steps.step_ns - bare
    known, open_ = (unrecorded(made, bare, 0.0, share * added).capture for share in (1.0, 0.5))
    assert known.event_cost_error_ns < 0.2 * known.event_cost_ns
    assert open_.event_cost_error_ns == pytest.approx(0.5 * open_.event_cost_ns, rel=0.3)


def test_steps_that_differ_while_they_are_recorded_leave_open_what_an_event_costs(recording):
    ms = per_step_ms(steps(recording, 0.0).tables())

    def open_share(spread):
        r = steps(recording, 2.5)
        light = per_step_ms(r.tables())
        r.with_info(light_ms=[light * (1 + part) for part in (-spread, 0.0, 0.0, spread)], unprofiled_ms=[ms] * 4)
        capture = as_unrecorded(r.tables()).capture
        return capture.event_cost_error_ns / capture.event_cost_ns

    # Steps are twice as long while they are recorded: 1.3 tenths of that are 2.6 of what recording added.
    assert open_share(0.0) < 0.02
    assert open_share(0.1) == pytest.approx(0.26, rel=0.2)
