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
