"""What a recording cannot tell is said, once and only where it is so."""

import json

import pytest

from diagnose.model.diagnosis import Finding
from diagnose.pipeline.trust import trust_notes, why_outweighed, why_unusable
from diagnose.reports.text import render


def said(r, part):
    return [note for note in trust_notes(r.tables()) if part in note.text]


@pytest.fixture
def hundred(recording):
    """Return a function that writes a step of 100 tasks, some of them without duration or without a launch."""

    def write(*, zero=0, unlinked=0, offset=0.0):
        r = recording()
        r.step(1, 0, 1000)
        for i in range(100):
            start = 10 * i + offset
            launched = None if i < unlinked else (-200 + i, -199 + i)
            r.kernel("add", start, start if i < zero else start + 9, launched=launched)
        return r

    return write


@pytest.mark.parametrize(("zero", "fires"), [(1, False), (2, True)])
def test_tasks_without_duration(hundred, zero, fires):
    notes = said(hundred(zero=zero, offset=0.5), "have no duration")
    assert [(note.text, note.rule) for note in notes] == (
        [("2 of 100 device tasks have no duration.", "lost-records")] if fires else []
    )


def test_in_a_file_of_whole_microseconds_a_short_task_reads_as_zero(hundred):
    assert said(hundred(zero=50), "have no duration") == []


@pytest.mark.parametrize(("unlinked", "fires"), [(1, False), (2, True)])
def test_tasks_without_a_launch(hundred, unlinked, fires):
    assert [n.text for n in said(hundred(unlinked=unlinked), "have no launch")] == (
        ["2 of 100 device tasks have no launch in the file: who queued them is not known."] if fires else []
    )


@pytest.fixture
def sparse(recording):
    """Return a step of 2 ms in which 100 tasks of 5 µs run, all queued before it but for those without a launch."""

    def write(unlinked):
        r = recording()
        r.step(1, 0, 2000)
        for i in range(100):
            r.kernel("add", 20 * i, 20 * i + 5, launched=None if i < unlinked else (-200 + i, -199 + i))
        return r.tables()

    return write


@pytest.mark.parametrize(
    ("unlinked", "worth_us", "why"),
    [
        (0, 1600, ""),
        (0, 1400, "Too much of the idle time cannot be explained from this trace"),  # 1.5 ms are idle
        (40, 1000, ""),
        (60, 1000, "Most launches of the device's tasks are missing"),
        (60, 1600, ""),  # an answer about what the device computes needs no launch
        (100, 1000, ""),  # a recording of the device alone
    ],
)
def test_what_the_file_does_not_explain_outweighs_an_answer(sparse, unlinked, worth_us, why):
    t = sparse(unlinked)
    assert why_outweighed(t, Finding("launch-bound", "", 0.0, worth_ns=worth_us * 1e3), t.steps.step_ns) == why


def test_of_a_run_whose_answer_lies_outside_the_recording_nothing_is_missing(sparse):
    t = sparse(0)
    assert why_outweighed(t, None, t.steps.step_ns) == ""
    assert why_outweighed(t, Finding("periodic-stall", "", 0.0, share=0.5), t.steps.step_ns) == ""


@pytest.mark.parametrize(("name", "lacks"), [("nccl:all_reduce", True), ("gloo:all_reduce", False)])
def test_a_collective_of_gpus_shows_that_one_worked(recording, name, lacks):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 10, 500)
    r.annotation(name, 600, 700)
    assert ("device's records are missing" in why_unusable(r.tables())) == lacks


@pytest.mark.parametrize(("num", "fires"), [(9, True), (10, False)])
def test_a_handful_of_tasks_says_nothing_of_steady_steps(recording, num, fires):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(num):
        r.kernel("add", 100 * i, 100 * i + 100, launched=(-200 + i, -199 + i))
    assert bool(said(r, f"holds only {num} device tasks: too few to analyse")) == fires


def test_one_task_is_one(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("add", 0, 100, launched=(-20, -10))
    assert said(r, "holds only 1 device task: too few")


@pytest.mark.parametrize(("steps", "lost", "fires"), [(3, False, False), (1, False, True), (3, True, True)])
def test_a_toy_of_several_whole_steps_is_whole(recording, steps, lost, fires):
    """Three launches and three tasks in each step; of one step, or with a launch that has no task, too few."""
    r = recording()
    for i in range(steps):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.copy("Memcpy HtoD (Pageable -> Device)", at + 20, at + 700, launched=(at + 1, at + 700), size=4_000_000)
        r.kernel(f"gemm_{i}", at + 710, at + 800, launched=(at + 701, at + 705))
        r.kernel("add", at + 800, at + 900, launched=(at + 706, at + 709))
    if lost:
        r.runtime("cudaLaunchKernel", 910, 915)
    assert bool(said(r, "too few to analyse")) == fires


@pytest.mark.parametrize(
    ("kernel", "backward", "fires"),
    [("void cudnn::bn_fw_tr_1C11<float>(int)", False, True), ("void cudnn::bn_fw_inf_1C11<float>(int)", False, False),
     ("void cudnn::bn_fw_tr_1C11<float>(int)", True, False)],
)  # fmt: skip
def test_layers_that_train_without_a_backward(recording, kernel, backward, fires):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(100):  # enough operators to know that a backward would be among them
        r.op("aten::batch_norm", i, i + 1)
    if backward:
        r.op("autograd::engine::evaluate_function: MeanBackward0", 200, 300)
    r.kernel(kernel, 100, 900, launched=(50, 60))
    assert bool(said(r, "ran as in training")) == fires


def test_names_instead_of_lines_are_announced(hundred):
    assert len(said(hundred(), "findings name operators, not lines")) == 1
    framed = hundred()
    framed.frame("train.py(3): main", 0, 1000)
    assert said(framed, "findings name operators, not lines") == []
    sampled = hundred()
    sampled.sample(500)
    assert said(sampled, "findings name operators, not lines") == []


def test_notes_of_the_capture_are_passed_on(hundred):
    r = hundred()
    r.with_info(notes=("NVML is not available: no driver.",))
    assert len(said(r, "no driver")) == 1


def test_a_second_device_that_is_not_looked_at_is_said(late):
    late.kernel("gemm", 300, 600, device=1, launched=(-10, -5))
    assert said(late, "Device 1 ran tasks too")


@pytest.mark.parametrize(("sampler", "fires"), [({}, 0), ({"ready_share": 0.05}, 0), ({"ready_share": 0.12}, 1)])
def test_a_training_thread_without_a_core(hundred, sampler, fires):
    r = hundred()
    r.with_info(sampler=sampler)
    notes = said(r, "runnable but not scheduled for 12 % of the time")
    assert len(notes) == fires


def calling(recording, num, beside_ns=1.5):
    """Return a step of 1000 µs with ``num`` operators of 5 µs that only call another one, which launches."""
    r = recording()
    r.step(1, 0, 1000)
    for i in range(num):
        at = 1000 * i / num
        r.op("aten::linear", at, at + 5)
        r.op("aten::addmm", at + 1, at + 1 + 5 - beside_ns)
        r.kernel("gemm", at + 4, at + 8, launched=(at + 2, at + 3))
    return r


def test_about_what_recording_costs_where_no_unrecorded_step_shows_it(recording):
    (note,) = said(calling(recording, 100), "Recording 301 operators and calls")
    assert note.text == (
        "Recording 301 operators and calls takes the host up to 452 µs of the step (45 %), as operators show that "
        "only call another one (1.5 µs each): what the host takes is less without the profiler."
    )
    assert note.rule == "profiler-overhead"


@pytest.mark.parametrize(("num", "beside_ns"), [(19, 1.5), (30, 0.2)])
def test_too_few_operators_and_little_cost_are_no_note(recording, num, beside_ns):
    assert said(calling(recording, num, beside_ns), "Recording ") == []


def test_measured_steps_need_no_estimate(recording):
    r = calling(recording, 100)
    r.with_info(unprofiled_ms=[0.9], light_ms=[1.0])
    assert said(r, "operators show that only call") == []


@pytest.mark.parametrize(("share", "warned"), [(0.1, False), (0.5, True)])
def test_a_busy_cpu_stands_beside_the_answer(late, share, warned):
    late.with_info(sampler={"ready_share": share})
    answer = late.diagnosis()
    assert json.loads(answer.to_json())["cpu_wait"] == share
    assert ("training waited for a core 50 % of the time" in " ".join(render(answer).split()).lower()) == warned


@pytest.mark.parametrize(
    ("taken", "worth_us", "is_outweighed"),
    [(0.88, 80, True), (0.88, 1900, False), (0.49, 80, False)],  # of 2 ms, which idle for three quarters
)
def test_what_recording_may_take_of_most_of_the_step_outweighs_an_answer(
    sparse, monkeypatch, taken, worth_us, is_outweighed
):
    t = sparse(40)
    monkeypatch.setattr("diagnose.pipeline.trust.estimated_share", lambda _t: taken)
    monkeypatch.setattr(type(t.causes), "totals", lambda _self: {})  # each gap has a cause
    why = why_outweighed(t, Finding("launch-bound", "", 0.0, worth_ns=worth_us * 1e3), t.steps.step_ns)
    assert why == ("The profiler took more time than the largest cost found" if is_outweighed else "")
