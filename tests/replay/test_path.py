"""What the critical path's length is divided into, also where the clocks of host and device are skewed."""

import numpy as np
import pytest

from diagnose.replay.graph import Edge, Graph
from diagnose.replay.simulate import CriticalPath, critical_path, simulate


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


def test_a_task_without_anything_to_wait_for_follows_the_begin_of_the_window():
    numbers = np.array
    graph = Graph(
        row=numbers([-1, 0, 1]),
        is_task=numbers([False, True, True]),
        api=np.full(3, -1, np.int32),
        lane=numbers([-1, 7, 7]),
        start=numbers([0, 0, 10]),
        end=numbers([0, 10, 30]),
        duration=numbers([0.0, 10.0, 20.0]),
        src=numbers([1]),
        dst=numbers([2]),
        kind=numbers([Edge.STREAM], np.int8),
        delay=numbers([5.0]),
        marks=np.empty(0, np.intp),
        binding=numbers([True]),
    )
    path = critical_path(graph, simulate(graph))
    assert (path.node.tolist(), path.delay_ns.tolist(), path.length_ns) == ([1, 2], [0.0, 5.0], 35.0)
