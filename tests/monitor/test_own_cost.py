"""How many steps the watch times, from what it takes itself: 0.5 % of a step."""

from diagnose.monitor.long_run import OwnCost

US, MS = 1_000, 1_000_000


def measured(step_us, row_us, rows=4):
    cost = OwnCost()
    for _ in range(rows):
        cost.add_steps(8 * step_us * US, 8)
        cost.add_row(row_us * US)
    return cost


def test_a_step_and_its_share_of_the_row_are_what_the_watch_takes():
    assert measured(4, 50).per_step_ns(50) == 5 * US
    assert OwnCost().per_step_ns(50) == 0


def test_short_steps_are_timed_one_in_so_many():
    cost = measured(4, 50)
    assert not cost.decide(1 * MS, 50, 1)  # 0.5 %
    assert cost.interval == 1
    assert cost.decide(0.4 * MS, 50, 1)
    assert cost.interval == 3  # 1.25 % of each; 0.42 % of one in three
    cost.decide(1 * US, 50, 1)
    assert cost.interval == 100


def test_steps_that_become_longer_are_all_timed_again():
    cost = measured(4, 50)
    assert cost.decide(0.4 * MS, 50, 1)
    assert not cost.decide(0.5 * MS, 50, 1)
    assert cost.interval == 3  # one in two would be enough, but not by much
    assert not cost.decide(2 * MS, 50, 1)
    assert cost.interval == 1


def test_few_rows_and_one_interruption_decide_nothing():
    assert not measured(4, 50, rows=3).decide(0.1 * MS, 50, 1)
    cost = measured(4, 50)
    cost.add_steps(10 * MS, 8)
    cost.add_row(10 * MS)
    assert not cost.decide(1 * MS, 50, 1)
