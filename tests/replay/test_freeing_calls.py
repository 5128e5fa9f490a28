"""Calls that free memory, which wait until the device is done. Times in µs."""

import numpy as np

from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import span
from diagnose.replay import build, scale_host, scale_kernels, simulate
from diagnose.replay.transforms import remove_cause
from diagnose.tables.syncs import freeing_calls
from tests.replay.graph_times import ends


def frees(recording):
    """A 100 µs kernel, a call that frees memory and waits for it, 30 µs of its own, and the next kernel."""
    r = recording()
    r.step(1, 0, 250)
    r.kernel("a", 20, 120, launched=(10, 15))
    r.runtime("cudaFree", 20, 150)
    r.kernel("b", 170, 250, launched=(160, 165))
    return r.tables()


def test_a_call_that_frees_memory_waits_for_the_device_and_works_then(recording):
    t = frees(recording)
    graph = build(t)
    assert np.array_equal(simulate(graph).end, graph.end)
    assert ends(scale_kernels(graph, t.trace, "^a$", 0.5), "b", t) == [200]
    assert ends(scale_host(graph, span(20_000, 150_000), 0.0), "b", t) == [220]


def test_without_freeing_the_host_runs_ahead(recording):
    t = frees(recording)
    finding = Finding(rule="allocator-stall", title="", lost_ns=130_000)
    gone = remove_cause(t, finding, "allocation", 1.0)
    assert ends(gone(build(t)), "b", t) == [200]


def test_a_call_that_returned_before_the_device_was_done_did_not_wait(recording):
    r = recording()
    r.kernel("a", 20, 120, launched=(10, 15))
    r.runtime("hipFree", 20, 40)
    assert len(freeing_calls(r.tables()).calls) == 0
