import itertools
import random

import pytest

from diagnose.kernels._planner import BlockCost, cheapest, peak_bytes


def block(name, num_bytes, seconds, live=None):
    return BlockCost(name, num_bytes, num_bytes if live is None else live, seconds)


def names(chosen):
    return [b.name for b in chosen]


def test_what_fits_needs_nothing():
    assert cheapest([block("a", 100, 1.0)], total_bytes=100, target_bytes=100) == []


def test_least_time_wins_not_most_bytes():
    blocks = [block("cheap", 60, 1.0), block("dear", 100, 9.0), block("fair", 60, 2.0)]
    assert names(cheapest(blocks, total_bytes=220, target_bytes=170)) == ["cheap", "fair"]


def test_a_block_is_alive_while_it_is_computed_again():
    one = [block("a", 100, 1.0)]
    assert cheapest(one, total_bytes=100, target_bytes=50) is None, "alone it comes back whole"
    several = [block(str(i), 100, 1.0) for i in range(4)]
    assert len(cheapest(several, total_bytes=400, target_bytes=300)) == 2
    assert peak_bytes(several[:2], 400) == 300


def test_calls_come_back_one_by_one():
    shared = block("shared", 300, 1.0, live=100)
    assert names(cheapest([shared], total_bytes=300, target_bytes=100)) == ["shared"]


def test_out_of_reach_is_none():
    assert cheapest([block("a", 10, 1.0)], total_bytes=1000, target_bytes=100) is None
    assert cheapest([], total_bytes=1000, target_bytes=100) is None


@pytest.mark.parametrize("seed", range(30))
def test_as_good_as_trying_every_choice(seed):
    draw = random.Random(seed)
    blocks = [block(str(i), draw.randint(1, 40), draw.randint(1, 30) / 10) for i in range(8)]
    total = sum(b.num_bytes for b in blocks) + draw.randint(0, 50)
    target = draw.randint(total // 3, total)
    choices = itertools.chain.from_iterable(itertools.combinations(blocks, n) for n in range(9))
    fitting = [sum(b.seconds for b in c) for c in choices if peak_bytes(c, total) <= target]
    chosen = cheapest(blocks, total, target)
    if not fitting:
        assert chosen is None
        return
    assert peak_bytes(chosen, total) <= target
    assert sum(b.seconds for b in chosen) == pytest.approx(min(fitting))


def test_large_numbers_are_covered_to_rounding():
    blocks = [block(str(i), 10**9 + 7919 * i, 0.001 * (1 + i % 3)) for i in range(96)]
    total = sum(b.num_bytes for b in blocks)
    chosen = cheapest(blocks, total, total // 2)
    assert peak_bytes(chosen, total) <= total // 2
    assert len(chosen) <= 51
