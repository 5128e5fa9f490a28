"""One cause for every idle nanosecond: rules are asked in order, and what is claimed is gone."""

import numpy as np
import pytest

from diagnose.model.intervals import EMPTY, Intervals, span, union
from diagnose.tables.gaps import assign, one_gap


def pieces(causes):
    rules = [causes.rules[i] for i in causes.rule]
    return list(zip(causes.start.tolist(), causes.end.tolist(), rules, strict=True))


def test_the_first_that_claims_a_nanosecond_keeps_it():
    claims = [("a", lambda left: span(0, 60)), ("b", lambda left: span(40, 80))]
    causes = assign(one_gap(0, 100), span(0, 100), claims, rest="rest")
    assert pieces(causes) == [(0, 60, "a"), (60, 80, "b"), (80, 100, "rest")]
    assert dict(causes.totals()) == {"a": 60, "b": 20, "rest": 20}
    assert list(causes.totals()) == ["a", "b", "rest"]


def test_a_claim_beyond_the_idle_time_counts_for_nothing():
    causes = assign(one_gap(0, 100), span(10, 20), [("a", lambda left: span(-500, 500))], rest="rest")
    assert pieces(causes) == [(10, 20, "a")]


@pytest.mark.parametrize("claimed", [([10, 20], [40, 50]), ([60, 10], [90, 30]), ([10, 10], [30, 30])])
def test_the_pieces_tile_the_time_however_a_claim_is_laid_out(claimed):
    start, end = (np.array(edges) for edges in claimed)
    causes = assign(one_gap(0, 100), span(0, 100), [("a", lambda left: Intervals(start, end))], rest="rest")
    assert causes.start.tolist() == [0, *causes.end.tolist()[:-1]]
    assert sum(causes.totals().values()) == 100


def test_a_rule_sees_only_what_is_left():
    seen = []

    def greedy(left):
        seen.append((left.start.tolist(), left.end.tolist()))
        return left

    assign(one_gap(0, 100), span(0, 100), [("a", lambda left: span(20, 30)), ("b", greedy)], rest="rest")
    assert seen == [([0, 30], [20, 100])]


def test_nobody_is_asked_once_nothing_is_left():
    def forbidden(left):
        raise AssertionError("there is nothing to claim")

    causes = assign(one_gap(0, 9), span(0, 9), [("a", lambda left: left), ("b", forbidden)], rest="rest")
    assert pieces(causes) == [(0, 9, "a")]
    assert causes.of("b").tolist() == []
    assert causes.of("never heard of").tolist() == []


def test_no_idle_no_causes():
    causes = assign(one_gap(0, 9), EMPTY, [("a", lambda left: left)], rest="rest")
    assert pieces(causes) == []
    assert dict(causes.totals()) == {}


def test_pieces_know_their_gap(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(3):
        r.kernel("a", 300 * i, 300 * i + 100, launched=(-50 + i, -49 + i))
    causes = r.tables().causes
    assert causes.gap.tolist() == [0, 1, 2]
    idle = r.tables().occupancy.idle
    assert union((causes.start, causes.end)).start.tolist() == idle.start.tolist()
    assert np.all(causes.end > causes.start)
