import random
from itertools import pairwise

import pytest

from diagnose.kernels.distributed.uneven import shares


@pytest.mark.parametrize(
    ("total", "rates", "expected"),
    [
        (64, [1, 1, 1, 1], [16, 16, 16, 16]),
        (64, [3, 1], [48, 16]),
        (10, [1, 1, 1], [4, 3, 3]),
        (10, [2, 1, 1], [5, 3, 2]),
        (4, [1000, 1, 1, 1], [1, 1, 1, 1]),
        (8, [1000, 1, 1, 1], [5, 1, 1, 1]),
        (5, [7], [5]),
    ],
)
def test_in_proportion_exact_and_never_empty(total, rates, expected):
    assert shares(total, rates) == expected


def test_limits_move_the_rest_to_the_others():
    assert shares(20, [10, 1, 1], limit=8) == [8, 6, 6]
    assert shares(24, [10, 1, 1], limit=8) == [8, 8, 8]
    assert shares(10, [100, 1, 1e-6], limit=6) == [6, 3, 1]


def test_whatever_the_rates_the_sum_and_the_bounds_hold():
    draw = random.Random(0)
    for _ in range(300):
        num = draw.randint(1, 9)
        rates = [10 ** draw.uniform(-3, 3) for _ in range(num)]
        total = draw.randint(num, 200)
        limit = draw.choice([None, draw.randint(-(-total // num), total)])
        found = shares(total, rates, limit=limit)
        assert sum(found) == total
        assert min(found) >= 1
        assert max(found) <= (limit or total)
        order = sorted(range(num), key=lambda i: rates[i])
        assert all(found[a] <= found[b] + 1 for a, b in pairwise(order)), "the faster got less"


@pytest.mark.parametrize(
    ("total", "rates", "limit"),
    [(3, [1, 0], None), (3, [], None), (1, [1, 1], None), (9, [1, 1], 4), (3, [float("nan")], None)],
)
def test_what_cannot_be_cut_is_refused(total, rates, limit):
    with pytest.raises(ValueError, match=r"shares needs|cannot be cut"):
        shares(total, rates, limit=limit)
