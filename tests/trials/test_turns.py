"""Forms of known gain take turns on a machine of numbers that drifts, slows down and stalls."""

import math

import pytest

from diagnose.errors import CaptureError
from diagnose.trials.turns import NARROW, Block, ScriptEndedError, TurnPlan, take_turns
from tests.trials.machine import FakeForm, Machine

CALM = {"drift": 0.0, "stall": 0.0, "spell": 1.0}


class Turns:
    """Forms on one machine, of which the first two are unchanged, and what was asked of them."""

    def __init__(self, *gains, seed=0, machine=CALM, spread=0.0, **plan):
        self.machine = Machine(seed, **machine)
        self.forms = [FakeForm(self.machine, gain, spread=spread) for gain in gains]
        self.renewed = []
        self.plan = TurnPlan(seed=seed, **plan)

    def renew(self, numbers):
        self.renewed.append((self.machine.now, list(numbers)))
        self.machine.now += 5.0
        for number in numbers:
            self.forms[number].renew()
        return {}

    def result(self):
        return take_turns(self.forms, (0, 1), self.plan, self.renew, lambda: self.machine.now)


def studied(*gains, num, **options):
    """Return the results of trials that differ in nothing but chance."""
    return [Turns(*gains, seed=seed, **options).result() for seed in range(num)]


def test_every_form_runs_once_a_round_in_an_order_that_changes():
    turns, order = Turns(1, 1, 1.5, until_certain=False, seconds=30), []
    for number, form in enumerate(turns.forms):
        form.block = lambda seconds, block=form.block, number=number: order.append(number) or block(seconds)
    found = turns.result()
    each = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert len(each) == len(found.rounds)
    assert all(sorted(one) == [0, 1, 2] for one in each)
    assert len(set(each)) == 6


def lengths(step_ms, *, num=40, **block):
    """Return how long the blocks are that a form is asked for, all of which have these steps."""
    turns, asked = Turns(1, 1, until_certain=False, seconds=30, machine=CALM), []

    def answer(seconds):
        asked.append(seconds)
        turns.machine.now += seconds
        steps = [step_ms[(len(asked) + i) % len(step_ms)] * 1e6 for i in range(8)]
        return Block(steps, [0.0] * 8, **block)

    turns.forms[1].block = answer
    turns.result()
    return asked[:num]


def test_blocks_become_short_once_steps_are_known_to_be_alike():
    asked = lengths([20.0, 21.0], apart=0.0)
    assert asked[:4] == [TurnPlan.long_block_s] * 4
    assert set(asked[8:]) == {TurnPlan.block_s}


@pytest.mark.parametrize(
    ("step_ms", "apart"), [([20.0] * 9 + [160.0], 0.0), ([20.0, 21.0], 1.0)], ids=["uneven", "with others"]
)
def test_blocks_stay_long_where_steps_differ_or_the_form_works_elsewhere_too(step_ms, apart):
    assert set(lengths(step_ms, apart=apart)) == {TurnPlan.long_block_s}


def test_processes_are_replaced_at_equal_times_which_do_not_count_and_in_an_order_that_changes():
    turns = Turns(1, 1, 1.5, until_certain=False, seconds=30, instances=3)
    found = turns.result()
    assert [round(at) for at, _ in turns.renewed] == [0, 15, 30]  # ten seconds of rounds and five of starting
    assert len({tuple(numbers) for _, numbers in turns.renewed}) > 1
    assert 30 <= found.seconds < 31
    assert [sum(r.instance == i for r in found.rounds) > 20 for i in range(3)] == [True] * 3


def test_what_is_certain_after_one_process_is_confirmed_by_a_second_at_once():
    turns = Turns(1, 1, 2.0, seconds=60)
    found = turns.result()
    assert found.estimates[2].verdict == "better"
    assert len(turns.renewed) == 2
    assert found.seconds < 15


def test_what_is_slower_is_dropped_and_the_rest_gets_the_time():
    turns = Turns(1, 1, 0.8, 1.014, seconds=60)
    found = turns.result()
    assert found.estimates[2].verdict == "worse"
    assert found.dropped.keys() == {2}
    assert turns.forms[2].blocks < turns.forms[0].blocks == turns.forms[3].blocks == len(found.rounds)


def test_a_gain_is_measured_until_it_is_known_closely_and_dropped_then():
    found = Turns(1, 1, 1.5, seconds=120, instances=4, spread=0.02, seed=2).result()
    assert found.dropped.keys() == {2}
    assert found.estimates[2].half_width <= NARROW
    certain = next(look.seconds for look in found.looks if look.estimates[2].verdict == "better")
    assert certain < found.dropped[2]


def test_a_script_that_ends_goes_on_in_new_processes_of_all_forms():
    turns = Turns(1, 1, 2.0, until_certain=False, seconds=20)

    def of_length(form, num):
        block, renew = form.block, form.renew

        def short(seconds):
            form.left -= 1
            if form.left < 0:
                raise ScriptEndedError("The script came to its end.")
            return block(seconds)

        def again():
            form.left = num
            renew()

        form.block, form.renew = short, again

    of_length(turns.forms[2], 10)
    found = turns.result()
    assert not found.failed
    assert all(numbers == [0, 1, 2] for numbers in map(sorted, (numbers for _, numbers in turns.renewed)))
    whole = [sum(each.instance == i for each in found.rounds) for i in range(found.num_instances - 1)]
    assert set(whole) == {10}
    assert found.estimates[2].verdict == "better"


def test_a_script_that_ends_before_a_process_counts_cannot_take_turns():
    turns = Turns(1, 1, 2.0, seconds=20)

    def block(_seconds):
        raise ScriptEndedError("The script came to its end.")

    turns.forms[1].block = block
    assert turns.result().failed == dict.fromkeys(
        range(3), "The script came to its end. It must train on for longer to take turns."
    )


def test_without_an_end_at_certainty_every_form_runs_to_the_end():
    turns = Turns(1, 1, 0.5, 2.0, until_certain=False, seconds=20)
    found = turns.result()
    assert not found.dropped
    assert {form.blocks for form in turns.forms} == {len(found.rounds)}


def test_a_form_that_ends_is_out_and_the_others_go_on():
    turns = Turns(1, 1, 1.5, 1.5, until_certain=False, seconds=20)

    def block(_seconds):
        raise CaptureError("It has ended.")

    turns.forms[3].block = block
    found = turns.result()
    assert found.failed == {3: "It has ended."}
    assert found.estimates[2].verdict == "better"
    assert (found.estimates[3].verdict, found.estimates[3].half_width) == ("open", math.inf)


def test_without_an_unchanged_form_nothing_is_measured():
    turns = Turns(1, 1, 1.5)
    turns.renew = lambda _numbers: {0: "It has ended.", 1: "It has ended."}
    found = turns.result()
    assert not found.rounds
    assert found.estimates[2].verdict == "open"


def test_unchanged_forms_that_differ_are_a_disturbed_measurement():
    assert Turns(1, 1.2, 1.5, until_certain=False).result().disturbed
    assert not Turns(1, 1, 1.5, until_certain=False).result().disturbed


@pytest.mark.parametrize(
    ("spread", "options"), [(0.003, {}), pytest.param(0.01, {}, marks=pytest.mark.full), (0.02, {"instances": 3})]
)
def test_a_change_that_does_nothing_is_not_found_and_the_interval_has_the_truth(spread, options):
    """Two hundred trials each: drift, slow spells, stalls, and processes that differ."""
    found = studied(1, 1, 1.0, num=200, machine={"stall": 0.003, "drift": 0.005}, spread=spread, **options)
    verdicts = [each.estimates[2].verdict for each in found]
    assert sum(verdict in ("better", "worse") for verdict in verdicts) <= 2
    assert sum(each.estimates[2].low <= 1 <= each.estimates[2].high for each in found) >= 190
    # Whoever looks at a bad moment is not fooled either.
    looks = [[look.estimates[2] for look in each.looks] for each in found]
    assert sum(all(e.surely_low <= 1 <= e.surely_high for e in each) for each in looks) >= 194
    assert sum(each.disturbed for each in found) <= 6


def test_a_gain_of_five_percent_is_found_where_processes_differ_little():
    found = studied(1, 1, 1.05, num=100, machine={"stall": 0.003, "drift": 0.005}, spread=0.003)
    assert sum(each.estimates[2].verdict == "better" for each in found) >= 95
    assert sum(each.estimates[2].low <= 1.05 <= each.estimates[2].high for each in found) >= 95


def test_a_gain_of_five_percent_needs_more_processes_where_they_differ_by_one():
    options = {"machine": {"stall": 0.003, "drift": 0.005}, "spread": 0.01}
    two, four = (studied(1, 1, 1.05, num=60, instances=num, **options) for num in (2, 4))
    better = [sum(each.estimates[2].verdict == "better" for each in found) for found in (two, four)]
    assert better[0] < better[1] >= 54
