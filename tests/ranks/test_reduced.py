"""Reductions over ranks of which only a later sum is read."""

import pytest

from diagnose.ranks.reduced import reduced_again
from tests.dataflow.table import Table


def reduced(t, value):
    """Reduce a value over ranks in place, as DistributedDataParallel does at line 9."""
    facts = {"storage": t.values[value.value].storage, "version": t._next_version(value)}
    use = t._add(value.shape, value.dtype, len(t.operators), "", **facts)
    t.op("allreduce_", value, writes=(use,), is_collective=True, line=9, phase="backward")
    return use


def accumulate(num=3, *, read=False, reset=False, apart=False):
    """Return a step that adds gradients to a bucket, each time reduced, before an optimizer reads it."""
    t = Table()
    bucket = t.op("mul", t.value(8), phase="backward")
    sums = []
    for _ in range(num):
        if apart:
            bucket = t.op("mul", t.value(8), phase="backward")
        elif reset:
            bucket = t.op("zero_", into=bucket)
        bucket = bucket if apart else t.op("add_.Tensor", t.value(8), into=bucket, phase="backward")
        bucket = reduced(t, t.op("div_.Scalar", into=bucket, phase="backward"))
        sums.append(bucket)
        if read:
            t.op("linalg_vector_norm", bucket, shape=())
    if apart:
        t.op("stack", *sums, shape=(num, 8))
    t.op("_fused_adam_", bucket, writes=(), phase="optimizer")
    return t.graph().flow


def test_of_three_reductions_that_add_up_two_are_not_needed():
    found = reduced_again(accumulate())
    assert (found.last.place.line, found.num) == (9, 3)
    assert found.share == pytest.approx(2 / 3)


@pytest.mark.parametrize("options", [{"num": 1}, {"read": True}, {"reset": True}, {"apart": True}])
def test_a_sum_that_is_read_needs_its_reduction(options):
    """One reduction; a norm of each; gradients that start again; gradients that are compared with each other."""
    assert reduced_again(accumulate(**options)) is None


def test_results_that_are_added_up_outside_need_one_reduction_of_the_sum():
    t = Table()
    total = t.op("zeros", shape=(8,))
    for _ in range(4):
        own = reduced(t, t.op("mul", t.value(8)))
        total = t.op("add_.Tensor", own, into=total)
    t.read_on_host(total)
    found = reduced_again(t.graph().flow)
    assert (found.num, found.share) == (4, 0.75)
