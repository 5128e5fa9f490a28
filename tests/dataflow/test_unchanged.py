"""Operators that change nothing."""

import pytest

from diagnose.dataflow.unchanged import unchanged
from tests.dataflow.table import Table


def normalized(t, *, role="buffer", is_one=True, reduce="linalg_vector_norm", backward=False, shared=False):
    """Divide rows by their norm."""
    rows = t.value(100, 8, role=role)
    norm = t.op(reduce, rows, shape=(100, 1), line=2, facts={"is_one": is_one})
    bound = t.op("clamp_min", norm, line=2, facts={"is_one": is_one})
    t.op("div", rows, bound, line=2)
    if backward:
        t.op("div", t.value(100, 8), bound, line=2, phase="backward", forward=len(t.operators) - 1)
    if shared:
        t.op("mean", norm, shape=(), line=3)


def found(make, *, steps=2, **options):
    t = Table()
    for t.step in range(steps):
        make(t, **options)
    g = t.graph()
    return [(g.operators[one.operator].name.removeprefix("aten::"), one.is_norm) for one in unchanged(g)]


def test_a_norm_of_1_and_what_it_divides_change_nothing():
    assert found(normalized) == [("linalg_vector_norm", True), ("clamp_min", True), ("div", True)]


def test_a_norm_that_is_used_elsewhere_stays():
    assert found(normalized, shared=True) == [("clamp_min", True), ("div", True)]


def test_the_backward_pass_of_what_was_normalized_before_goes_as_well():
    assert ("div", True) in found(normalized, role="", backward=True)[3:]


@pytest.mark.parametrize(
    "options",
    [
        {"is_one": False},
        {"reduce": "exp"},  # computes nothing of all columns
        {"role": "parameter", "backward": True},  # gradients would leave the norm
        {"steps": 1},
    ],
)
def test_other_factors_are_needed(options):
    assert found(normalized, **options) == []


def test_a_factor_of_1_that_comes_from_elsewhere_may_be_luck():
    def weighted(t):
        t.op("mul", t.value(100, 8), t.value(100, 1, is_one=True))

    assert found(weighted) == []


def returning(t, name, *, content="ordered", kind="", more=()):
    first = t.value(4, 16, 8, 8, content="ordered")
    t.op(name, first, *(t.value(*shape) for shape in more), content=content, facts={"kind": kind})


@pytest.mark.parametrize("name", ["sort", "index_select", "embedding", "upsample_bilinear2d", "roll"])
def test_what_returns_its_argument_in_each_step_changes_nothing(name):
    assert found(returning, name=name) == [(name, False)]
    assert found(returning, name=name, steps=1) == []


@pytest.mark.parametrize(
    "options",
    [
        {"name": "sort", "content": "other"},
        {"name": "sort", "kind": "constant"},
        {"name": "clamp"},  # a guard
        {"name": "where"},
        {"name": "clone"},  # a copy to write into
    ],
)
def test_guards_copies_and_what_says_nothing_stay(options):
    assert found(returning, **options) == []
