"""For whom ranks wait where they exchange in several groups."""

import numpy as np
import pytest

from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import CollectiveKind, Group
from diagnose.ranks.waits import blamed

PAIRS = ((0, 1), (2, 3)), ((0, 2), (1, 3))  # of tensor parallel ranks, and of data parallel ones


def exchanged(*collectives):
    """Return what was matched from the members of each collective, in the order of their ends."""
    rank = np.array([r for members in collectives for r in members])
    match = np.repeat(np.arange(len(collectives)), [len(members) for members in collectives])
    row = np.array([int((rank[:i] == r).sum()) for i, r in enumerate(rank.tolist())])
    return Matches(
        rank=rank,
        row=row,
        match=match,
        first=np.flatnonzero(np.diff(match, prepend=-1)),
        kinds=(CollectiveKind(0, "all_reduce"),) * len(collectives),
        groups=tuple(Group(str(members), members=members) for members in collectives),
        residual_ns=0.0,
        num_unmatched=0,
        num_disagreeing=0,
        num_sampled=0,
        apart=(),
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 0, 1), (2, 0, 3, 1)])  # hosts' clocks may lie apart
def test_a_rank_that_was_made_late_passes_the_blame_on(order):
    """Rank 1 comes 5 late; rank 0 waits for it, and so comes 5 late to rank 2, as rank 1 does to rank 3."""
    matches = exchanged(*PAIRS[0], *PAIRS[1])
    waits = np.array([5, 0, 0, 0, 0, 5, 0, 5])
    parts = np.concatenate([np.arange(2 * i, 2 * i + 2) for i in order])
    moved = exchanged(*(tuple(matches.rank[2 * i : 2 * i + 2].tolist()) for i in order))
    object.__setattr__(moved, "row", matches.row[parts])
    found = blamed(moved, waits[parts], waits[parts].astype(float), np.zeros(8, int), (4, 1))
    assert found.sum(axis=1).tolist() == [0, 15, 0, 0]


def test_what_a_rank_is_late_by_itself_is_for_itself():
    """Rank 0 waits 2 for rank 1, and then takes 3 more itself, before rank 2 waits 5 for it."""
    waits = np.array([2, 0, 0, 0, 0, 5, 0, 2])
    found = blamed(exchanged(*PAIRS[0], *PAIRS[1]), waits, waits.astype(float), np.zeros(8, int), (4, 1))
    assert found.sum(axis=1).tolist() == [3, 6, 0, 0]


def test_a_step_begins_without_debts():
    waits = np.array([5, 0, 0, 0, 0, 5, 0, 5])
    found = blamed(exchanged(*PAIRS[0], *PAIRS[1]), waits, waits.astype(float), np.array([0] * 4 + [1] * 4), (4, 2))
    assert found.tolist() == [[0, 5], [5, 5], [0, 0], [0, 0]]


def test_ranks_that_recorded_collectives_in_different_orders_are_counted_all_the_same():
    matches = exchanged((0, 1), (0, 1), (2, 3))
    object.__setattr__(matches, "row", np.array([0, 1, 1, 0, 0, 0]))
    waits = np.array([5, 0, 0, 3, 1, 0])
    assert blamed(matches, waits, waits.astype(float), np.zeros(6, int), (4, 1)).sum() == 9
