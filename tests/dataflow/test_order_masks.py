"""Matrices of all pairs whose rows are prefixes of a sorted vector."""

import pytest

from diagnose.dataflow.order_masks import order_masks
from tests.dataflow.table import Table, lines

N = 64


def as_row(use):
    return use._replace(shape=(1, N), stride=(N, 1))


def pairs(t, *, other=None, scores=(1, N), reduces="logsumexp"):
    """Compare a vector with itself, mask a row of scores, and reduce each row; return the result."""
    key, score = t.value(N), t.value(N)
    columns = key if other is None else other
    mask = t.op("ge.Tensor", as_row(key), columns._replace(shape=(N, 1), stride=(1, 1)), shape=(N, N), line=2)
    score = as_row(score) if scores == (1, N) else t.value(*scores)
    masked = t.op("masked_fill.Scalar", score, t.op("bitwise_not", mask, line=3), shape=(N, N), line=3)
    result = t.op(reduces, masked, shape=(N,) if reduces != "softmax" else (N, N), line=4)
    t.op("exp", masked, line=4, phase="backward")
    return result


def test_its_operators_are_named_forward_and_backward():
    t = Table()
    t.op("exp", t.value(N), line=1)
    pairs(t)
    (found,) = order_masks(t.graph())
    assert (found.length, lines(found.work), len(found.work.operators)) == (N, [2, 3, 4], 5)


@pytest.mark.parametrize("reduces", ["softmax", "mm"])
def test_what_needs_whole_rows_is_no_prefix(reduces):
    t = Table()
    pairs(t, reduces=reduces)
    assert order_masks(t.graph()) == ()


def test_scores_of_pairs_and_two_vectors_need_the_matrix():
    t = Table()
    pairs(t, scores=(N, N))
    assert order_masks(t.graph()) == ()
    t = Table()
    pairs(t, other=t.value(N))
    assert order_masks(t.graph()) == ()
