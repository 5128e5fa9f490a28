import math

import pytest

from diagnose.trials.candidates import Candidate
from diagnose.trials.measuring import TrialResult
from diagnose.trials.trials import TrialRuns, compare_losses, evaluate, is_gain, norms_apart

LOSSES = tuple(2.0 / (i + 1) for i in range(40))


def scaled(by):
    return tuple(loss * (1 + by) for loss in LOSSES)


def compare(baselines, losses, promise):
    return compare_losses(baselines, [losses], promise)


def test_the_same_bits_are_identical():
    assert compare([LOSSES], LOSSES, "identical").numerics == "identical"


def test_one_other_bit_at_the_end_is_not_identical():
    other = (*LOSSES[:-1], math.nextafter(LOSSES[-1], 1))
    assert compare([LOSSES], other, "identical").numerics == "within"


def test_a_promise_sets_what_is_within():
    assert compare([LOSSES], scaled(1e-4), "identical").numerics == "drifted"
    assert compare([LOSSES], scaled(1e-4), "rounding").numerics == "within"
    assert compare([LOSSES], scaled(1e-2), "rounding").numerics == "drifted"
    assert compare([LOSSES], scaled(1e-2), "reduced").numerics == "within"
    assert compare([LOSSES], scaled(1e-1), "reduced").numerics == "drifted"


def test_the_spread_of_the_unchanged_runs_is_allowed_for():
    parity = compare([LOSSES, scaled(0.05)], scaled(0.1), "identical")
    assert parity.numerics == "within"
    assert "differs from itself" in parity.note
    assert compare([LOSSES, scaled(0.05)], scaled(0.5), "identical").numerics == "drifted"


def test_a_loss_that_stops_being_finite_has_drifted():
    parity = compare([LOSSES], (*LOSSES[:4], math.nan, *LOSSES[5:]), "reduced")
    assert parity.numerics == "drifted"
    assert "Loss 5 is not finite" in parity.note


def test_a_nan_that_both_have_is_the_same():
    broken = (*LOSSES[:4], math.nan)
    assert compare([broken], broken, "identical").numerics == "identical"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((), (), "No loss was seen: backward was called on no scalar."),
        (LOSSES[:2], LOSSES[:2], "Too few losses to compare: 2 unchanged, 2 with the change, at least 3 are needed."),
        (LOSSES, LOSSES[:2], "Too few losses to compare: 40 unchanged, 2 with the change, at least 3 are needed."),
        ((), LOSSES, "Too few losses to compare: 0 unchanged, 40 with the change, at least 3 are needed."),
    ],
)
def test_too_few_losses_are_counted(before, after, said):
    parity = compare([before], after, "identical")
    assert (parity.numerics, parity.note) == ("unknown", said)


def test_gradient_norms_are_compared_step_by_step():
    assert norms_apart((2.0, 4.0, 1.0), (2.2, 4.4, 1.0, 9.0)) == pytest.approx(0.1)
    assert norms_apart((2.0,), (2.0,)) == 0.0
    assert norms_apart((2.0, 4.0), (2.0, math.nan)) == math.inf
    assert norms_apart((), (2.0,)) is None


def spoiled(step, by):
    return (*LOSSES[:step], LOSSES[step] + by, *LOSSES[step + 1 :])


def test_one_loss_that_is_far_off_has_drifted():
    """The median of 30 losses does not show it."""
    parity = compare([LOSSES], spoiled(12, 0.5), "reduced")
    assert (parity.numerics, parity.drift) == ("drifted", 0.0)
    assert parity.worst_drift == pytest.approx(0.5 / LOSSES[12], rel=0.3)
    assert parity.limits == (2e-2, 0.2)
    assert "Loss 13 is" in parity.note
    assert "of 2.0e-01 allowed" in parity.note
    assert compare([LOSSES], spoiled(12, 0.01), "reduced").numerics == "within"


def test_a_loss_near_zero_is_held_against_the_usual_one():
    crossing = (*LOSSES[:12], 1e-9, *LOSSES[13:])
    assert compare([crossing], (*LOSSES[:12], 3e-9, *LOSSES[13:]), "rounding").numerics == "within"


def test_a_far_loss_is_allowed_where_the_unchanged_runs_have_one():
    assert compare([LOSSES, spoiled(7, 0.4)], spoiled(12, 0.5), "reduced").numerics == "within"


def test_every_run_with_the_change_counts():
    parity = compare_losses([LOSSES], [LOSSES, scaled(0.5), LOSSES], "reduced")
    assert (parity.numerics, parity.run) == ("drifted", 1)
    assert parity.note.startswith("In 1 of 3 runs with the change: The median loss is 5.0e-01 away")
    assert compare_losses([LOSSES], [LOSSES, (*LOSSES[:9], math.nan)], "reduced").numerics == "drifted"
    assert compare_losses([LOSSES], [LOSSES, ()], "reduced").numerics == "unknown"
    assert compare_losses([LOSSES], [LOSSES, scaled(1e-4)], "reduced").numerics == "within"
    assert compare_losses([LOSSES], [LOSSES, LOSSES], "reduced").numerics == "identical"


@pytest.mark.parametrize(
    ("change", "draws", "losses", "numerics"),
    [
        ("load-in-workers", True, scaled(1e-2), "unknown"),
        ("load-in-workers", False, scaled(1e-2), "drifted"),
        ("load-in-workers", True, (math.nan, *LOSSES[1:]), "drifted"),
        ("fused-optimizer", True, scaled(1e-1), "drifted"),
        ("fast-dropout", False, scaled(1e-1), "unknown"),  # other elements are dropped, whatever samples do
        ("fast-dropout", False, (math.nan, *LOSSES[1:]), "drifted"),
    ],
)
def test_samples_that_draw_otherwise_in_workers_are_no_drift(change, draws, losses, numerics):
    before = [TrialResult(step_ns=(10e6,) * 20, losses=LOSSES, samples_draw=draws)] * 2
    after = [TrialResult(step_ns=(5e6,) * 20, losses=losses, applied=("it",))] * 2
    trial = evaluate(Candidate(change, ""), TrialRuns((change,), before, after, before))
    assert trial.numerics == numerics
    assert is_gain(trial) is (numerics == "unknown")
    assert ("Other random numbers are drawn with the change" in trial.note) is (numerics == "unknown")


@pytest.mark.parametrize(
    ("change", "first_epoch", "same", "numerics"),
    [
        ("load-in-workers", 10, 10, "identical"),
        ("keep-workers", 10, 10, "identical"),
        ("load-in-workers", 10, 9, "drifted"),
        ("load-in-workers", 2, 2, "unknown"),  # too few to compare
        ("load-in-workers", None, 10, "drifted"),  # no other epoch began
        ("fused-optimizer", 10, 10, "drifted"),
    ],
)
def test_workers_that_are_kept_promise_the_numbers_of_the_first_epoch(change, first_epoch, same, numerics):
    before = [TrialResult(step_ns=(10e6,) * 20, losses=LOSSES, first_epoch=first_epoch)] * 2
    losses = (*LOSSES[:same], *scaled(1)[same:])
    after = [TrialResult(step_ns=(5e6,) * 20, losses=losses, applied=("it",))] * 2
    trial = evaluate(Candidate(change, ""), TrialRuns((change,), before, after, before))
    assert trial.numerics == numerics
    kept = first_epoch is not None and change != "fused-optimizer"
    assert ("Later epochs draw other random numbers" in trial.note) is kept
    assert ("are compared" in trial.note) is (kept and numerics != "unknown")
    assert ("Too few losses to compare: 2 unchanged" in trial.note) is (kept and numerics == "unknown")


def test_a_loss_of_a_later_epoch_that_is_not_finite_is_a_drift():
    before = [TrialResult(step_ns=(10e6,) * 20, losses=LOSSES, first_epoch=10)] * 2
    after = [TrialResult(step_ns=(5e6,) * 20, losses=(*LOSSES[:12], math.nan), applied=("it",))] * 2
    trial = evaluate(Candidate("keep-workers", ""), TrialRuns(("keep-workers",), before, after, before))
    assert trial.numerics == "drifted"
