"""Whether everything is slower on a rank, or has more to do in as many calls."""

import numpy as np
import pytest

from diagnose.ranks.profile import RankProfile, Speeds
from diagnose.ranks.speeds import slower


def rank(*means, has_device=False):
    """Return a rank whose operators, or kernels, called 100 times each, take so many µs."""
    num = len(means)
    speeds = Speeds(np.arange(num), np.full(num, 100), np.array([100_000 * mean for mean in means]))
    named = {"kernels": speeds} if has_device else {"operators": speeds}
    return RankProfile(step_number=np.arange(10), has_device=has_device, **named)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((28, 27, 41, 7), (1.4, False)),  # everything by the same factor
        ((160, 160, 240, 40), (1.0, True)),  # nothing slows a machine eightfold: larger inputs
        ((40, 40, 30, 5), (1.0, True)),  # products twice as long, small operators as they were
        ((20, 20, 60, 5), (1.0, False)),  # one operator
        ((20, 20, 30, 5), (1.0, False)),
    ],
)
@pytest.mark.parametrize("has_device", [False, True])
def test_larger_inputs_are_told_from_a_slower_machine(means, expected, has_device):
    ranks = [rank(20, 20, 30, 5, has_device=has_device), rank(*means, has_device=has_device)]
    ratio, more_work = slower(ranks, "kernels" if has_device else "operators", 1, [0])
    assert (pytest.approx(ratio, rel=0.1), more_work) == expected
