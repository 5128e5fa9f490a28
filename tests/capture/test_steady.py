"""When step times count as steady."""

import random

from diagnose.capture.steps.step_source import converged_since
from diagnose.model.limits import FEWEST


def first_steady(times):
    return next((n for n in range(len(times) + 1) if converged_since(times[:n]) is not None), None)


def test_flat_from_the_start():
    assert first_steady([10.0] * 20) == 2 * FEWEST
    assert converged_since([10.0] * (2 * FEWEST)) == 0


def test_compiling_is_waited_for():
    times = [900.0, 800.0, 20.0, 700.0, 10.0, 10.1, 9.9, 10.0, 10.0, 10.2, 10.0, 9.9]
    found = first_steady(times)
    assert found is not None
    assert converged_since(times[:found]) >= 3


def test_a_slow_decline_is_not_steady():
    assert first_steady([100.0 * 0.93**n for n in range(40)]) is None


def test_single_outliers_do_no_harm():
    times = [10.0, 10.1, 9.9, 10.0, 55.0, 10.0, 10.1, 10.0]
    assert converged_since(times) == 0


def test_noise_settles_in_the_end():
    noise = random.Random(0)
    times = [10 * noise.lognormvariate(0, 0.3) for _ in range(100)]
    assert first_steady(times) is not None
