"""Speed-ups from rounds whose ratios a reader can compute, and what makes them uncertain."""

import math
import random
import statistics

import pytest

from diagnose.trials.turn_statistics import (
    MIN_ROUNDS,
    PRIOR_SPREAD,
    Estimate,
    Round,
    estimate,
    instance_ratios,
    t_quantile,
)

UNCHANGED = (0, 1)


def rounds(*instances, num=20, machine=lambda i: 1.0, wobble=0.01):
    """Return rounds of each instance, a list of steps by form; a wobble of one round is taken back in the next."""
    found = []
    for number, steps in enumerate(instances):
        for i in range(num):
            each = {f: ns * machine(i) * (1 + wobble * (-1) ** (i + f)) for f, ns in enumerate(steps)}
            found.append(Round(number, each))
    return found


def test_the_quantiles_of_t_are_those_of_the_tables():
    assert [round(t_quantile(n, 0.05), 3) for n in (1, 2, 3, 4, 10)] == [12.706, 4.303, 3.182, 2.776, 2.228]
    assert t_quantile(30, 0.01) == pytest.approx(2.750, abs=5e-4)


def test_the_ratio_is_that_within_rounds_however_the_machine_drifts():
    found = estimate(rounds([100, 100, 80], [100, 100, 80], machine=lambda i: 1.1**i), 2, UNCHANGED, 2)
    assert found.ratio == pytest.approx(1.25, rel=1e-3)
    assert found.low < 1.25 < found.high < 1.3
    assert found.surely_low < found.low
    assert found.high < found.surely_high
    assert (found.num_rounds, found.num_instances, found.verdict) == (40, 2, "better")


def test_the_unchanged_forms_are_set_against_each_other():
    assert estimate(rounds([100, 90, 80]), 1, UNCHANGED, 1).ratio == pytest.approx(100 / 90, rel=1e-3)
    assert estimate(rounds([100, 90, 80]), 2, UNCHANGED, 1).ratio == pytest.approx(math.sqrt(100 * 90) / 80, rel=1e-3)
    assert estimate(rounds([100, 80]), 0, (0,), 1).num_rounds == 0  # there is no other


def test_stalls_in_a_quarter_of_the_rounds_move_nothing():
    calm, stalled = rounds([100, 100, 80]), rounds([100, 100, 80])
    for i in (3, 6, 8, 12, 17):
        stalled[i] = Round(0, {**stalled[i].step_ns, 2: 80_000.0})
    before, after = (estimate(each, 2, UNCHANGED, 1) for each in (calm, stalled))
    assert after.ratio == pytest.approx(before.ratio, rel=0.01)
    assert after.half_width < 1.5 * before.half_width


def test_instances_that_differ_widen_the_interval_and_rounds_do_not_help():
    alike = [rounds([100, 100, 95], [100, 100, 95], num=num) for num in (20, 80)]
    apart = [rounds([100, 104, 95], [100, 97, 99], num=num) for num in (20, 80)]
    (few, many), (few_apart, many_apart) = ([estimate(r, 2, UNCHANGED, 2) for r in each] for each in (alike, apart))
    assert few.verdict == many.verdict == "better"
    assert few_apart.verdict == many_apart.verdict == "open"
    assert many_apart.half_width > 3 * many.half_width
    assert many_apart.half_width == pytest.approx(few_apart.half_width, rel=0.1)


def test_noise_of_rounds_is_not_taken_for_a_difference_of_instances():
    rng = random.Random(0)
    widths, num_held = [], 0
    for _ in range(40):
        noisy = [Round(i, {f: 100 * math.exp(rng.gauss(0, 0.1)) for f in range(3)}) for i in (0, 1) for _ in range(40)]
        found = estimate(noisy, 2, UNCHANGED, 2)
        errors = [error for _, error in instance_ratios(noisy, 2, UNCHANGED)]
        widths.append(found.half_width / (math.hypot(*errors) / 2))  # in standard errors of the rounds
        num_held += found.low <= 1 <= found.high
    assert num_held == 40
    assert statistics.median(widths) < 3.5  # three of them are the bound that holds at every look


def test_that_instances_are_alike_is_not_believed_of_two():
    width = estimate(rounds([100, 100, 95], [100, 100, 95], num=400, wobble=0.001), 2, UNCHANGED, 2).half_width
    assert PRIOR_SPREAD < width < 3 * PRIOR_SPREAD


def test_nothing_is_certain_before_a_second_instance():
    found = estimate(rounds([100, 100, 50]), 2, UNCHANGED, 2)
    assert (found.impression, found.verdict) == ("better", "open")


def test_neighbouring_rounds_that_are_alike_count_as_fewer():
    def spells(length):
        found = rounds([100, 100, 80], num=80, wobble=0)
        return [Round(0, {**r.step_ns, 2: 80 * (1.05 if i // length % 2 else 1)}) for i, r in enumerate(found)]

    def rounds_error(each):
        return instance_ratios(each, 2, UNCHANGED)[0][1]

    assert rounds_error(spells(10)) > 2 * rounds_error(spells(1))


def test_an_instance_of_too_few_rounds_does_not_count_yet():
    begun = rounds([100, 100, 80]) + [Round(1, {0: 100, 1: 100, 2: 500})] * (MIN_ROUNDS - 1)
    assert estimate(begun, 2, UNCHANGED, 2) == estimate(rounds([100, 100, 80]), 2, UNCHANGED, 2)


def with_neighbours(*instances, apart, seed=0, **options):
    """Return rounds in which others take half of the machine at times, and what each form had without them."""
    rng = random.Random(seed)
    return [
        Round(r.instance, {f: ns * rng.choice((1, 2)) for f, ns in r.step_ns.items()}, r.step_ns, apart)
        for r in rounds(*instances, **options)
    ]


def test_the_time_that_others_took_is_no_noise_where_a_form_is_its_thread_alone():
    calm = rounds([100, 100, 95], [100, 100, 95])
    busy = with_neighbours([100, 100, 95], [100, 100, 95], apart={0: 0.001, 1: 0.002, 2: 0.004})
    assert estimate(busy, 2, UNCHANGED, 2) == estimate(calm, 2, UNCHANGED, 2)
    assert instance_ratios(busy, 2, UNCHANGED) == instance_ratios(calm, 2, UNCHANGED)


@pytest.mark.parametrize("apart", [{0: 0.0, 1: 0.0, 2: 0.5}, {0: 0.0, 1: 0.5, 2: 0.0}, {0: 0.0, 2: 0.0}])
def test_it_is_noise_of_all_that_are_compared_where_one_may_have_waited_for_something_else(apart):
    busy = with_neighbours([100, 100, 95], [100, 100, 95], apart=apart)
    plain = [Round(each.instance, each.step_ns) for each in busy]
    assert estimate(busy, 2, UNCHANGED, 2) == estimate(plain, 2, UNCHANGED, 2)


def test_a_form_that_waits_for_something_else_makes_no_other_one_noisy():
    alone = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    all_alone = with_neighbours([100, 100, 95, 80], [100, 100, 95, 80], apart=alone)
    one_waits = with_neighbours([100, 100, 95, 80], [100, 100, 95, 80], apart={**alone, 3: 0.9})
    assert estimate(one_waits, 2, UNCHANGED, 2).half_width < 1.1 * estimate(all_alone, 2, UNCHANGED, 2).half_width
    assert estimate(one_waits, 3, UNCHANGED, 2).half_width > 2 * estimate(all_alone, 3, UNCHANGED, 2).half_width


def test_verdicts_are_read_off_the_ends():
    def of(low, high, surely_low=0.0, surely_high=math.inf, instances=2):
        return Estimate(1.0, low, high, surely_low, surely_high, 50, instances)

    assert of(1.01, 1.1, 1.001, 1.2).verdict == "better"
    assert of(1.01, 1.1, 0.999, 1.2).verdict == "open"  # 95 % are not enough
    assert of(0.8, 0.9, 0.7, 0.99).verdict == "worse"
    assert of(0.99, 1.019, 0.9, 1.1).verdict == "even"
    assert of(0.99, 1.021, 0.9, 1.1).verdict == "open"
