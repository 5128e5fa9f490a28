"""The recorded traces beside the repository, as graphs."""

from functools import lru_cache
from pathlib import Path

import pytest

from diagnose.model.capture import Capture
from diagnose.pipeline.find import build_tables
from diagnose.replay.build import graph_of
from diagnose.trace_reader import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.fixture(scope="session")
def recorded_graph():
    """Return a function from a trace's name to its tables and its graph; skip where the traces are absent."""
    if not TRACES.is_dir():
        pytest.skip("the recorded traces (../shared/traces) are not here")

    @lru_cache
    def load(name):
        capture = Capture(read_trace(TRACES / f"{name}.json.gz"))
        t = build_tables(capture, capture.trace)
        return t, graph_of(t)

    return load
