"""The one ranking: worth decides the order and the answer, and nothing else does."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import META
from diagnose.answer import answering, beside_lines, in_order, worth_ns
from diagnose.model.diagnosis import NO_TASKS, Finding, Removal
from diagnose.model.intervals import EMPTY


def found(rule, lost, relief=None, **fields):
    finding = Finding(rule, rule, lost, relief_ns=relief, **fields)
    return replace(finding, worth_ns=worth_ns(finding, META[rule]))


@pytest.mark.parametrize(
    ("finding", "worth"),
    [
        (found("data-stall", 40.0, 30.0), 30.0),  # as replayed
        (found("data-stall", 40.0, 0.0), 0.0),  # other work takes as long
        (found("data-stall", 40.0), 40.0),  # not replayed: what it costs
        (found("periodic-stall", 40.0, share=0.4), 40.0),
        (found("periodic-stall", 40.0, share=0.4, confidence="low"), 0.0),  # it came once
        (found("throttled", 40.0), 0.0),  # a state of the machine
        (found("unexplained-host", 40.0, 40.0), 0.0),  # no known cause
        (found("slow-kernel", 40.0, 40.0), 0.0),  # only a trial shows whether another kernel is faster
        (found("kernel-latency", 40.0, 40.0), 0.0),  # every device needs its pauses
    ],
)
def test_a_finding_is_worth_what_a_step_without_it_saves(finding, worth):
    assert finding.worth_ns == worth


def test_the_largest_worth_comes_first_and_of_equal_ones_the_one_that_costs_more():
    given = [
        found("host-sync", 20.0, 10.0),
        found("gc-pause", 5.0),
        found("data-stall", 30.0, 10.0),
        found("recompute", 11.0),
    ]
    assert [f.rule for f in in_order(given)] == ["recompute", "data-stall", "host-sync", "gc-pause"]


@pytest.mark.parametrize(
    ("relief", "first"),
    [(20.0, "independent-loop"), (19.9, "launch-bound"), (45.0, "independent-loop")],
)
def test_the_pace_of_launches_yields_to_operators_that_explain_a_large_part(relief, first):
    known = Removal(EMPTY, NO_TASKS, NO_TASKS, np.empty(0))
    given = [found("launch-bound", 45.0, 40.0), found("independent-loop", 10.0, relief, without=known)]
    assert in_order(beside_lines(given, META))[0].rule == first


def test_no_other_finding_yields_to_operators():
    known = Removal(EMPTY, NO_TASKS, NO_TASKS, np.empty(0))
    given = [found("host-sync", 45.0, 40.0), found("independent-loop", 10.0, 30.0, without=known)]
    assert beside_lines(given, META) == given


@pytest.mark.parametrize(
    ("worth", "has_device", "answers"),
    [(2.0, True, True), (1.99, True, False), (10.0, False, True), (9.99, False, False)],
)
def test_below_the_floor_there_is_little_to_gain(worth, has_device, answers):
    first = found("data-stall", worth)
    answer = answering([first, found("gc-pause", 0.5)], 100.0, has_device=has_device)
    assert (answer is first) == answers


def test_without_a_finding_there_is_no_answer():
    assert answering([], 100.0, has_device=True) is None
