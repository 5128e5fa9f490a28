"""periodic-stall: one step in many takes several times as long. Times in ms."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.answer.cards import predictions
from diagnose.answer.screen import answer
from diagnose.reports.saving_words import gain


@pytest.fixture
def ran(recording, run_steps):
    def make(took, **known):
        r = recording()
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        r.run = run_steps(took, **known)
        return r

    return make


def one_in_16(num=160):
    return [400.0 if i % 16 == 15 else 10.0 for i in range(num)]


def test_its_period_and_what_it_costs_a_step(ran):
    took = one_in_16()
    r = ran(took, checkpoint=[390.0 * (t > 10) for t in took], backwards=[1] * 160)
    finding = r.find("periodic-stall")
    assert finding.title == "1 step in 16 is much longer: it saves a checkpoint"
    assert (finding.count, finding.facts["period"]) == (10, 16)
    assert finding.evidence[0] == (
        "10 of 158 watched steps took 400.0 ms each, the others 10.0 ms: 24.7 ms a step, 71 % of the run's time."
    )
    assert "None of the steps in the timing window" in finding.evidence[-1]


def test_it_is_the_answer_where_it_costs_most(ran):
    d = ran(one_in_16()).diagnosis()
    assert d.dominant == "periodic-stall"
    assert d.headline == "1 step in 16 is much longer (costs 71.2 % of the run)"
    assert answer(d).run_share == pytest.approx(0.712, abs=1e-3)


def test_its_line_is_named(ran):
    took = one_in_16(64)
    sampled = [(sum(took[:15]) + at, [("train.py", 9, "save"), ("train.py", 15, "main")]) for at in range(10, 400, 20)]
    r = ran(took, sampled=sampled)
    r.lines["train.py", 9] = "torch.save(model)"
    where = r.find("periodic-stall").where
    assert (where[0].file, where[0].line, where[0].code) == ("train.py", 9, "torch.save(model)")
    assert where[1].line == 15


def test_what_is_saved_is_a_part_of_the_step_which_is_the_run_s_mean(ran):
    """Steps of 10 ms, of which every 16th saves for 390 ms: half of that is more than the steps beside it take."""
    took = one_in_16()
    d = ran(took, checkpoint=[390.0 * (t > 10) for t in took], backwards=[1] * 160).diagnosis()
    fix = d.prescriptions[0]
    assert (d.step_ns, d.recorded_step_ns) == (pytest.approx(34.684e6, rel=1e-4), 10e6)
    assert (fix.id, fix.mean_step_ns) == ("save-in-background", d.step_ns)
    assert fix.saves_ns == pytest.approx((3.357e6, 24.098e6), rel=1e-3)
    assert fix.predicted_step_ns == pytest.approx(d.step_ns - sum(fix.saves_ns) / 2)
    each = predictions(d)
    assert (each[fix.id].after_ns, each[fix.id].low_ns, each[fix.id].high_ns) == (
        fix.predicted_step_ns, d.step_ns - fix.saves_ns[1], d.step_ns - fix.saves_ns[0],
    )  # fmt: skip
    assert answer(d).after is None  # the most is seven times the least: no promise
    assert gain(fix, each) == "saves up to 24.1 ms per step"
    assert d.summary[-1].endswith("(saves up to 24.1 ms)")


def test_what_came_once_may_not_come_again(ran):
    took = [400.0 if i == 50 else 10.0 for i in range(100)]
    r = ran(took, evaluation=[390.0 * (t > 10) for t in took], backwards=[1] * 100)
    assert r.diagnosis().dominant is None
    finding = r.find("periodic-stall")
    title = "1 of 98 steps is much longer: it evaluates the model"
    assert (finding.title, finding.confidence) == (title, "low")


@pytest.mark.parametrize(("evaluating", "found"), [(40.0, False), (80.0, True)])
def test_an_evaluation_is_a_phase_unless_it_costs_much(ran, evaluating, found):
    """Every 20th of 400 steps of 10 ms evaluates: 17 % of the run, or 29 %."""
    took = [10.0 + evaluating * (i % 20 == 19) for i in range(400)]
    r = ran(took, evaluation=[t - 10 for t in took], backwards=[1] * 400)
    assert (r.find("periodic-stall") is not None) is found


def test_without_times_of_the_run_nothing_is_found(late):
    assert late.find("periodic-stall") is None


def test_rollouts_of_one_step_in_many_are_collected_in_larger_batches(ran):
    took = one_in_16()
    d = ran(took, rollout=[390.0 * (t > 10) for t in took], backwards=[1] * 160).diagnosis()
    assert d.prescriptions[0].id == "batch-rollouts"


@pytest.mark.parametrize(("usual", "more", "found"), [(0, 4, True), (1, 3, False), (1, 4, True)])
def test_what_each_step_computes_without_gradients_is_no_part_of_a_rollout(ran, usual, more, found):
    """Each step has so many intervals without gradients, the long ones so many more."""
    took = [25.0 if i % 10 == 9 else 10.0 for i in range(160)]
    work = [usual + more * (t > 10) for t in took]
    r = ran(took, rollout=[14.0 * (t > 10) for t in took], work=work, backwards=[1] * 160)
    assert (r.find("periodic-stall") is not None) is found


def collecting(ran, long_at, num=200, usual=10.0, pause=100.0):
    """Return a run of which some steps hold a collection that begins 2 ms after they do."""
    took = [pause + usual if i in long_at else usual for i in range(num)]
    r = ran(took, backwards=[1] * num, loading=[max(t - 5.0, 0.0) for t in took])
    r.run = replace(r.run, began_ns=r.run.began_ns + r.epoch_ns)
    r.collections = [(1000 * (sum(took[:i]) + 2), 1000 * (sum(took[:i]) + 2 + pause)) for i in long_at]
    return r


def test_collections_in_one_step_of_many_are_named_by_what_they_cost_in_the_whole_run(ran):
    r = collecting(ran, (20, 71, 115, 190))
    finding = r.find("periodic-stall")
    assert finding.title == "1 step in about 50 is much longer: Python's garbage collector runs"
    assert finding.lost_ns == pytest.approx(4 * 100e6 / 198)
    assert "100 % of what they take longer is the collector's." in finding.evidence
    (p,) = r.prescribe("periodic-stall")
    factor = finding.facts["cost_factor"]
    assert p.id == "schedule-gc"
    assert p.saves_ns[0] == pytest.approx(0.95 * finding.lost_ns / factor)
    # Four collections say little of how many a longer run has: with so much more of them its steps are longer as well.
    assert p.saves_ns[1] / p.mean_step_ns == pytest.approx(factor * 400 / (1980 + factor * 400))


def test_collections_noted_in_every_recorded_step_are_no_long_steps(ran):
    r = collecting(ran, tuple(range(60, 80)))  # as captures were that noted them in timing windows only
    r.run = replace(r.run, state=np.array([1 if 60 <= i < 80 else 0 for i in range(200)], np.int8))
    assert "periodic-stall" not in [f.rule for f in r.diagnosis().findings]


def test_one_or_two_collections_may_be_those_of_the_start(ran):
    assert "periodic-stall" not in [f.rule for f in collecting(ran, (20, 190)).diagnosis().findings]


def test_a_long_load_in_which_nothing_was_collected_is_the_loaders(ran):
    r = collecting(ran, tuple(range(19, 200, 20)))
    r.collections = []
    assert "starts its next epoch" in r.find("periodic-stall").title


def test_recorded_collections_of_such_steps_are_no_finding_of_their_own(ran):
    r = collecting(ran, (0, 20, 71, 115, 190), usual=1.0, pause=8.0)
    assert r.booked()["gc-pause"] == 8_000_000  # of the recorded step, the first of the run
    assert [f.rule for f in r.diagnosis().findings if f.rule in ("gc-pause", "periodic-stall")] == ["periodic-stall"]
    r.run = None
    assert [f.rule for f in r.diagnosis().findings if f.rule in ("gc-pause", "periodic-stall")] == ["gc-pause"]


@pytest.mark.parametrize(
    ("phase", "title"),
    [
        ("evaluation", "Evaluate less often and in larger"),
        ("inference", "Keep what this pass computes alike each time, and make the rest cheaper"),
    ],
)
def test_what_is_no_evaluation_is_not_called_one(ran, phase, title):
    took = one_in_16()
    r = ran(took, backwards=[1] * 160, **{phase: [390.0 * (t > 10) for t in took]})
    (p,) = r.prescribe("periodic-stall")
    assert p.id == "evaluate-less"
    assert p.title.startswith(title)
    assert "if step % 32 == 0:" in p.after


def test_how_often_one_that_was_seen_irregularly_comes_is_the_author_s_to_fill_in(ran):
    took = [10.0] * 160
    took[77] = 3000.0
    (p,) = ran(took, backwards=[1] * 160, evaluation=[t - 10 for t in took]).prescribe("periodic-stall")
    assert "if step % (2 * every) == 0:" in p.after


def share_saved(ran, long_at, num, pause=(100.0,)):
    took = [10.0 + (pause[long_at.index(i) % len(pause)] if i in long_at else 0) for i in range(num)]
    r = ran(took, checkpoint=[t - 10 for t in took], backwards=[1] * num)
    finding, (p,) = r.find("periodic-stall"), r.prescribe("periodic-stall")
    assert p.id == "save-in-background"
    return tuple(saved / finding.lost_ns for saved in p.saves_ns)


def test_the_range_of_what_is_saved_is_wider_the_fewer_and_the_more_unequal_the_steps_are(ran):
    """The change takes 30 to 95 % of such a step away; numbers by hand from the standard errors."""
    uneven = (20, 71, 115, 190)
    low, high = share_saved(ran, uneven, 200)
    assert low == pytest.approx(0.15 * np.exp(-1.96 / 4**0.5), rel=1e-3)  # Poisson's: four of them
    factor, lost = np.exp(1.96 / 4**0.5), 400 / 1980  # of the other steps' time: what is in the factor is in the step
    assert high == pytest.approx(0.95 * factor / (1 + (factor - 1) * lost / (1 + lost)), rel=1e-3)
    more = tuple(start + 200 * i for i in range(4) for start in uneven)
    assert share_saved(ran, more, 800)[0] == pytest.approx(0.15 * np.exp(-1.96 / 16**0.5), rel=1e-3)
    regular = tuple(range(19, 200, 20))
    assert share_saved(ran, regular, 200)[0] == pytest.approx(0.15 * np.exp(-1.96 * 0.5 / 10), rel=1e-3)
    spread = np.hypot(1.96 * 0.5 / 10, 2.262 * np.std([50, 150] * 5, ddof=1) / 100 / 10**0.5)
    unequal = share_saved(ran, regular, 200, (50.0, 150.0))
    assert unequal[0] == pytest.approx(0.15 * np.exp(-spread), rel=1e-3)


def test_how_roughly_few_steps_show_their_cost_is_stated(ran):
    few = collecting(ran, (20, 71, 115, 190)).find("periodic-stall")
    assert few.evidence[3] == ("Judged by 4 of them, the cost over a longer run is 758 µs to 5.38 ms a step (95 %).")
    many = ran(one_in_16(800)).find("periodic-stall")
    assert not any("Judged" in text for text in many.evidence)
