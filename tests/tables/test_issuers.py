"""Which function of the script's stands out that calls operators one by one."""

import random

import pytest

from diagnose.analyzers import ADVICE
from diagnose.analyzers.common.advice import MIN_REPEATS
from diagnose.model.diagnosis import Finding
from diagnose.tables.issuers import issuer_of
from diagnose.tables.program import Program


@pytest.mark.parametrize(
    ("calls", "each", "stands_out"),
    [
        (24, 9, False),  # a layer, called for each block
        (3, 72, True),  # a loop over experts in a layer
        (1, 216, True),
    ],
)
def test_a_layer_that_is_called_often_is_no_loop(recording, calls, each, stands_out):
    r = recording()
    r.step(1, 0, 10_000)
    r.frame("train.py(3): main", 0, 10_000)
    for i in range(calls):
        at, took = 10 + 9_900 * i / calls, 9_900 / calls - 10
        r.frame(f"nn.Module: Layer_{i}", at, at + took)
        r.frame("model.py(10): forward", at + 1, at + took - 1)
        for k in range(each):
            begin = at + 2 + (took - 4) * k / each
            r.op("aten::add", begin, begin + (took - 4) / each * 0.8)
    found = issuer_of(r.tables())
    assert (found is not None) is stands_out
    assert found is None or (found.function, found.num, found.in_model) == ("forward", 216, True)


BODY = ["aten::mul", "aten::exp", "aten::sub"]
ONCE = [f"aten::{random.Random(i).choice('abcdefgh')}" for i in range(60)]  # lines of a loss, each of which runs once


@pytest.mark.parametrize(
    ("steps", "is_loop"),
    [
        ([BODY * 20] * 3, True),
        ([[*BODY, *BODY[:2]] * 12] * 3, True),
        ([ONCE] * 3, False),
        ([BODY[:1] * 60, ONCE, ONCE], False),  # a rollout before some of the updates
    ],
)
def test_only_what_a_usual_step_repeats_is_a_loop(recording, steps, is_loop):
    r = recording(devices=())
    for number, names in enumerate(steps):
        r.step(number, 10_000 * number, 10_000 * (number + 1))
        r.frame("train.py(3): loss", 10_000 * number, 10_000 * (number + 1))
        for k, name in enumerate(names):
            r.op(name, 10_000 * number + 10 + 100 * k, 10_000 * number + 90 + 100 * k)
    found = issuer_of(r.tables())
    assert found.repeats == 1.0 if is_loop else found.repeats < MIN_REPEATS


@pytest.mark.parametrize(("repeats", "fits"), [({}, True), ({"repeats": 0.9}, True), ({"repeats": 0.3}, False)])
def test_lines_that_run_once_are_no_loop_to_vectorise(repeats, fits):
    facts = {"issuer": {"file": "a.py", "line": 3, "num": 87.0, "share": 0.7, "in_model": False, **repeats}}
    finding = Finding(rule="launch-bound", title="", lost_ns=1.0, share=0.5, facts=facts)
    assert any(entry.when(finding, Program()) for entry in ADVICE["launch-bound"]["vectorise-loop"]) is fits
