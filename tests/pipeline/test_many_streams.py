"""A task on a stream of its own for each launch: rows that are looked at grow as the streams do, not squared."""

from __future__ import annotations

import numpy as np
import pytest


def recorded(recording, num):
    r = recording()
    r.step(1, 0, 10 * num)
    for i in range(num):
        at = 10 * i
        r.op("aten::add", at, at + 4, shapes="[[64, 64], [64, 64]]", types='["float", "float"]')
        r.kernel("elementwise_kernel", at + 2, at + 9, stream=i, launched=(at + 1, at + 2))
    r.runtime("cudaDeviceSynchronize", 10 * num - 2, 10 * num)
    return r


@pytest.fixture
def scanned(monkeypatch):
    """Count the rows that are searched."""
    counts, find = [0], np.flatnonzero

    def counting(values):
        counts[0] += len(values)
        return find(values)

    monkeypatch.setattr(np, "flatnonzero", counting)
    return counts


def test_rows_that_are_searched_grow_as_the_streams_do(recording, scanned):
    looked_at = []
    for num in (100, 800):
        scanned[0] = 0
        answer = recorded(recording, num).diagnosis()
        assert answer.replay_error is not None
        looked_at.append(scanned[0])
    assert looked_at[1] < 12 * looked_at[0]  # eight times as many streams; a scan of all for each would be 64 times


def test_every_stream_is_drawn(recording):
    picture = recorded(recording, 40).diagnosis().picture
    assert sum(lane.startswith("GPU 0 stream") for lane in picture.spans.lanes) == 40
