"""The interval algebra against a brute-force set of whole nanoseconds."""

import numpy as np
import pytest

from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    covered,
    grouped,
    intersect,
    longer_than,
    rows_of_each,
    span,
    subtract,
    total,
    union,
)


def points(a: Intervals) -> set[int]:
    return {t for lo, hi in zip(a.start.tolist(), a.end.tolist(), strict=True) for t in range(lo, hi)}


def some(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    start = rng.integers(0, 60, rng.integers(0, 9))
    return start, start + rng.integers(0, 12, len(start))


def assert_normal(a: Intervals) -> None:
    assert (a.end > a.start).all()
    assert (a.start[1:] > a.end[:-1]).all(), "sorted, disjoint and not even touching"


@pytest.mark.parametrize("seed", range(60))
def test_matches_sets_of_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw_a, raw_b = some(rng), some(rng)
    a, b = union(raw_a), union(raw_b)
    assert points(a) == {t for lo, hi in zip(*raw_a, strict=True) for t in range(lo, hi)}
    results = {
        "union": (union(a, b), points(a) | points(b)),
        "intersect": (intersect(a, b), points(a) & points(b)),
        "subtract": (subtract(a, b), points(a) - points(b)),
    }
    for name, (got, expected) in results.items():
        assert points(got) == expected, name
        assert total(got) == len(expected), name
        assert_normal(got)


@pytest.mark.parametrize("seed", range(30))
def test_covered_counts_each_query(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, (start, end) = union(some(rng)), some(rng)
    expected = [len(points(a) & set(range(lo, hi))) for lo, hi in zip(start, end, strict=True)]
    assert covered(a, start, end).tolist() == expected


def test_touching_intervals_merge() -> None:
    merged = union((np.array([10, 0]), np.array([20, 10])))
    assert (merged.start.tolist(), merged.end.tolist()) == ([0], [20])


def test_what_touches_in_an_intersection_is_one() -> None:
    halves = Intervals(np.array([0, 5]), np.array([5, 9]))
    both = intersect(Intervals(np.array([2]), np.array([8])), halves)
    assert (both.start.tolist(), both.end.tolist()) == ([2], [8])


def test_empty_sets() -> None:
    assert union() == EMPTY
    assert total(span(5, 5)) == 0
    assert subtract(EMPTY, span(0, 5)) == EMPTY
    assert total(subtract(span(0, 5), EMPTY)) == 5


def test_longer_than_keeps_the_bound() -> None:
    a = union((np.array([0, 10, 30]), np.array([5, 20, 31])))
    assert longer_than(a, 5).start.tolist() == [0, 10]


def test_a_union_leaves_what_it_is_given_as_it_was():
    start, end = np.array([5, 0, 3, 9]), np.array([7, 3, 3, 9])
    whole = union((start, end))
    assert (whole.start.tolist(), whole.end.tolist()) == ([0, 5], [3, 7])
    assert (start.tolist(), end.tolist()) == ([5, 0, 3, 9], [7, 3, 3, 9])
    again = union(whole)
    assert not np.shares_memory(again.start, whole.start)


def test_equal_values_are_put_together():
    found = grouped(np.array([7, 3, 7, 5, 3]))
    assert [part.tolist() for part in found] == [[3, 5, 7], [1, 3, 0], [2, 0, 2, 1, 0]]
    assert [part.tolist() for part in grouped(np.empty(0, np.int64))] == [[], [], []]


def test_the_rows_of_each_value():
    found = rows_of_each(np.array([7, 3, 7, 5, 3]))
    assert {value: rows.tolist() for value, rows in found.items()} == {3: [1, 4], 5: [3], 7: [0, 2]}
    assert list(found) == [3, 5, 7]
    assert rows_of_each(np.empty(0, np.int64)) == {}
