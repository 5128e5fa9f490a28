"""What the critical path's length is divided into, also where the clocks of host and device are skewed."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.replay.build import build
from diagnose.replay.path import CriticalPath, critical_path
from diagnose.replay.simulate import simulate


def chain(*pieces):
    """Return a chain of (delay before it, duration)."""
    delay, duration = zip(*pieces, strict=True)
    return CriticalPath(np.arange(len(pieces)), np.array(duration, float), np.array(delay, float))


@pytest.mark.parametrize(
    ("pieces", "node", "delay"),
    [
        ([(0, 10), (5, 20)], [10, 20], [0, 5]),
        ([(0, 10), (-4, 20)], [6, 20], [0, 0]),  # the second begins 4 before the first ends
        ([(0, 10), (-4, 2), (0, 3)], [6, 2, 3], [0, 0, 0]),
        ([(0, 10), (2, 1), (-5, 9)], [8, 0, 9], [0, 0, 0]),  # the third begins before the second
        ([(3, 10)], [10], [3]),
    ],
)
def test_no_part_of_the_path_is_negative_and_they_sum_to_its_length(pieces, node, delay):
    path = chain(*pieces)
    parts = path.divided()
    assert [part.tolist() for part in parts] == [node, delay]
    assert sum(part.sum() for part in parts) == path.length_ns


def test_the_path_begins_at_what_a_change_left_nothing_to_wait_for(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("a", 0, 40, launched=(-9, -5))
    r.kernel("b", 40, 100, launched=(-4, -2))
    graph = build(r.tables())
    kept = graph.src > 0
    free = replace(
        graph, src=graph.src[kept], dst=graph.dst[kept], kind=graph.kind[kept], delay=graph.delay[kept],
        binding=graph.binding[kept],
    )  # fmt: skip
    path = critical_path(free, simulate(free))
    assert path.length_ns == 100_000
    assert path.node[0] > 0
