"""What is prescribed for long steps now and then, for rollouts, and for lines that save or load. Times in ms."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding


@pytest.fixture
def ran(recording, run_steps):
    def make(line="", **known):
        r = recording()
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        took = [400.0 if i % 16 == 15 else 10.0 for i in range(160)]
        if line:
            at = [(sum(took[:15]) + time, [("train.py", 9, "main")]) for time in range(10, 400, 20)]
            known["sampled"] = at
            r.lines["train.py", 9] = line
        r.run = run_steps(took, backwards=[1] * 160, **{k: _times(v, took) for k, v in known.items()})
        return r

    def _times(value, took):
        return [390.0 * (t > 10) for t in took] if value is True else value

    return make


@pytest.mark.parametrize(
    ("known", "ids"),
    [
        ({"checkpoint": True}, ["save-in-background"]),
        ({"evaluation": True}, ["evaluate-less"]),
        ({"line": "torch.save(model.state_dict(), path)"}, ["save-in-background"]),
        ({"line": "dcp.save(model.state_dict(), checkpoint_id=folder)"}, ["save-in-background"]),
        ({"line": "table = torch.load(path)"}, ["load-mapped"]),
        ({"line": "plot(history)"}, []),
    ],
)
def test_long_steps_now_and_then(ran, known, ids):
    r = ran(**known)
    prescribed = r.prescribe("periodic-stall")
    assert [p.id for p in prescribed] == ids
    d = r.diagnosis()
    assert d.step_ns > 3 * d.recorded_step_ns  # 34.7 and 10: what comes now and then is a part of the step
    found = {p.id: p for p in d.prescriptions}
    for name in ids:
        assert found[name].predicted_step_ns == pytest.approx(d.step_ns - sum(found[name].saves_ns) / 2)
        assert name in d.waterfall.forecasts[-1].ids


HALF = "if step % 32 == 0:   # half as often: half of the cost\n    torch.save(state, path)"


@pytest.mark.parametrize(
    ("known", "after"),
    [({"checkpoint": True}, HALF), ({"line": "torch.save(m, p)"}, HALF), ({"evaluation": True}, "")],
)
def test_a_checkpoint_may_also_be_saved_half_as_often(ran, known, after):
    found = [p for p in ran(**known).diagnosis().also_possible if p.id == "save-less-often"]
    assert [p.after for p in found] == [after] * bool(after)


@pytest.mark.parametrize(
    ("line", "call"),
    [("torch.save(state, path)", "saver.save(state, path)"), ("dcp.save(state)", "saver.save_sharded(state, folder)")],
)
def test_parts_of_a_checkpoint_are_saved_as_such(ran, line, call):
    (prescription,) = ran(line=line).prescribe("periodic-stall")
    assert call in prescription.after


@pytest.mark.parametrize(
    ("loader", "ids"),
    [
        ({"num_workers": 4, "persistent_workers": False}, ["keep-workers"]),
        ({"num_workers": 4, "persistent_workers": True}, []),
        ({"num_workers": 0}, []),
        ({}, []),
    ],
)
def test_epochs_that_start_workers(recording, run_steps, loader, ids):
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    took = [100.0 if i % 25 == 24 else 10.0 for i in range(200)]
    r.run = run_steps(took, loading=[t - 8 for t in took], backwards=[1] * 200)
    r.with_info(loader=loader)
    assert [p.id for p in r.prescribe("periodic-stall")] == ids


@pytest.mark.parametrize(("num_batches", "ids"), [(25, ["keep-workers"]), (30, [])])
def test_epochs_are_known_by_their_length_where_no_phase_is(recording, run_steps, num_batches, ids):
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    r.run = run_steps([100.0 if i % 25 == 24 else 10.0 for i in range(200)], backwards=[1] * 200)
    r.with_info(loader={"num_workers": 4, "persistent_workers": False, "num_batches": num_batches})
    assert [p.id for p in r.prescribe("periodic-stall")] == ids


def test_an_evaluation_half_as_often(ran):
    (p,) = ran(evaluation=True).prescribe("periodic-stall")
    assert "if step % 32 == 0:" in p.after


def test_a_rollout_in_one_call(recording, run_steps):
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    r.run = run_steps([10.0] * 20, backwards=[1] * 20, rollout=[6.6] * 20)
    (p,) = r.prescribe("rollout-bound")
    assert (p.id, "make_vec" in p.after) == ("batch-rollouts", True)


def test_one_call_of_a_teacher_may_save_nothing(recording, run_steps):
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    r.run = run_steps([10.0] * 20, backwards=[1] * 20, inference=[5.0] * 20)
    (p,) = r.prescribe("rollout-bound")
    assert p.saves_ns == (0, pytest.approx(0.95 * 5e6))


def test_python_that_saves_goes_to_a_thread_and_no_other(late):
    late.samples_every(10, 310, 690, ("train.py", 12, "main"), 1)
    late.lines["train.py", 12] = "torch.save(model.state_dict(), 'last.pt')"
    assert [p.id for p in late.prescribe("python-stall")] == ["save-in-background"]


@pytest.mark.parametrize(("has_device", "least"), [(True, 0.3), (False, 0.15), (None, 0.3)])
def test_without_a_device_the_thread_that_saves_takes_from_the_steps_beside_it(has_device, least):
    facts = {"phase": "checkpoint"} | ({} if has_device is None else {"has_device": has_device})
    (p,) = prescribe(Finding("periodic-stall", "", 10e6, facts=facts), 100e6)
    assert (p.id, p.saves_ns) == ("save-in-background", (pytest.approx(least * 10e6), pytest.approx(0.95 * 10e6)))
