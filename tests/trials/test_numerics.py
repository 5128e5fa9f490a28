import math

import pytest

from diagnose.trials.numerics import compare, norms_apart

LOSSES = tuple(2.0 / (i + 1) for i in range(40))


def scaled(by):
    return tuple(loss * (1 + by) for loss in LOSSES)


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


def test_a_script_that_differs_from_itself_is_judged_by_that():
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


def test_without_losses_nothing_is_known():
    assert compare([()], (), "identical").numerics == "unknown"
    assert compare([LOSSES], LOSSES[:2], "identical").numerics == "unknown"


def test_gradient_norms_are_compared_step_by_step():
    assert norms_apart((2.0, 4.0, 1.0), (2.2, 4.4, 1.0, 9.0)) == pytest.approx(0.1)
    assert norms_apart((2.0,), (2.0,)) == 0.0
    assert norms_apart((2.0, 4.0), (2.0, math.nan)) == math.inf
    assert norms_apart((), (2.0,)) is None
