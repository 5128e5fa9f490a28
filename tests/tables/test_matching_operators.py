"""Operators of the timing window and their likes in the attribution window. Times in µs."""

import pytest

from diagnose.pipeline.find import build_tables
from diagnose.tables.op_launches import matched_steps


def stepping(recording, names):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for i, name in enumerate(names):
        r.op(f"aten::{name}", 10 * i, 10 * i + 5)
    return r


USUAL = ["embedding", *["mm", "relu"] * 9, "sum"]


@pytest.mark.parametrize(
    ("names", "like", "pairs"),
    [
        (USUAL, USUAL, 20),
        (USUAL, ["item", *USUAL], 20),  # it logged what the step before gave
        (USUAL, [*USUAL[:5], "norm", "mul", *USUAL[5:]], 20),
        (USUAL, [*USUAL[:19], "mean"], 19),
        (USUAL, ["mul"] * 20, 0),
    ],
)
def test_operators_before_and_behind_what_differs_are_matched(recording, names, like, pairs):
    capture = stepping(recording, names).capture(attribution=stepping(recording, like))
    t = build_tables(capture, capture.trace)
    found = [
        (t.name(row), t.named.name(other))
        for step in matched_steps(t)
        for row, other in zip(step.rows.tolist(), step.named.tolist(), strict=True)
    ]
    assert len(found) == pairs
    assert all(one == other for one, other in found)


def tasks(recording, names, **texts):
    r = recording()
    r.step(1, 0, 1000)
    for i, name in enumerate(names):
        at = 20 * i
        r.op(f"aten::{name}", at, at + 10, **texts)
        r.kernel(name, at + 12, at + 20, launched=(at + 2, at + 8))
    return r


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (USUAL, 20),
        (["item", *USUAL], 20),
        ([*USUAL[:5], "norm", "mul", *USUAL[5:]], 20),
        (["mul"] * 20, 0),
    ],
)
def test_tasks_before_and_behind_what_differs_have_shapes(recording, names, known):
    shaped = tasks(recording, USUAL, shapes="[[4, 4]]", types='["float"]')
    capture = tasks(recording, names).capture(attribution=shaped)
    inputs = build_tables(capture, capture.trace).operator_inputs
    assert inputs.is_known.sum() == known
    assert all(inputs.text(name) == f"aten::{names[i]}" for i, name in enumerate(inputs.name.tolist()) if name >= 0)
