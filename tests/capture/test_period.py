"""Which events end a step, as literal sequences: the letters are keys, a full stop marks the end of a step."""

from itertools import pairwise

import pytest

from diagnose.capture.steps.step_source import StepFinder


def ends(keys, **options):
    """Return the numbers of the events that end a step once the finder has made up its mind."""
    finder = StepFinder(**options)
    found = []
    for number, key in enumerate(keys):
        end, changed = finder.on_event(key)
        if changed:
            found.clear()
        if end:
            found.append(number)
    return finder, found


@pytest.mark.parametrize(
    ("cycle", "events_per_step", "last"),
    [
        ("A", 1, "A"),
        ("AB", 2, "B"),  # two optimizers, or one wrapped in another
        ("AAAAAB", 6, "B"),  # five critic updates per generator update
        ("ABCDEFGH", 8, "H"),  # one optimizer per parameter
    ],
)
def test_cycles(cycle, events_per_step, last):
    keys = cycle * 12
    finder, found = ends(keys)
    assert finder.events_per_step == events_per_step
    assert {keys[number] for number in found} == {last}
    assert {b - a for a, b in pairwise(found)} <= {events_per_step}
    assert not finder.undecided


def test_steps_that_begin_with_their_event():
    finder, found = ends("AB" * 10, at_start=True)
    assert finder.anchor == "A"
    assert {"AB"[n % 2] for n in found} == {"A"}


def test_skipped_events_lengthen_a_step():
    finder, _ = ends("ABABABAABABABABABAABABAB")  # B is skipped now and then
    assert finder.anchor == "B"
    assert finder.events_per_step == 2


@pytest.mark.parametrize("trial", ["A", "AAAAAAAA", "ABABABAB", "ABC"])
def test_a_trial_run_with_optimizers_of_its_own_is_forgotten(trial):
    finder, found = ends(trial + "Z" * 200)
    assert finder.anchor == "Z"
    assert finder.events_per_step == 1
    assert len(found) > 100


def test_many_optimizers_are_no_trial_run():
    keys = [f"parameter {n}" for n in range(300)]
    finder, found = ends(keys * 5)
    assert finder.events_per_step == 300
    assert {number % 300 for number in found} == {299}


def test_a_locked_finder_forgets_nothing():
    finder, _ = ends("A" * 20)
    finder.locked = True
    for _ in range(500):
        assert finder.on_event("B") == (False, False)
    assert finder.anchor == "A"


def test_a_key_that_came_once_leaves_the_question_open():
    finder, _ = ends("AAAAAB")
    assert finder.undecided
    finder, _ = ends("AAAAAB" + "A" * 40)
    assert not finder.undecided
    assert finder.anchor == "A"


def test_a_rare_key_does_not_make_the_step():
    finder, _ = ends(("A" * 40 + "B") * 3)
    assert finder.anchor == "A"


def test_a_locked_finder_keeps_its_anchor():
    finder, _ = ends("AAAA")
    finder.locked = True
    for key in "ABABABAB":
        _, changed = finder.on_event(key)
        assert not changed
    assert finder.anchor == "A"
