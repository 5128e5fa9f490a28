"""What changes save, alone and together, and the path that the step's length follows from. Times in µs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import span
from diagnose.replay import (
    critical_path,
    graph_of,
    predict,
    replayed_savings,
    scale_host,
    scale_kernels,
    shares,
    simulate,
)


@pytest.fixture
def stalled(recording):
    """A step in which Python runs from 110 to 390 with the device idle from 100 to 410, then a kernel to 500."""
    r = recording()
    r.step(1, 0, 500)
    r.op("aten::mm", 0, 30)
    r.kernel("a", 20, 100, launched=(10, 15))
    r.op("aten::mm", 390, 500)
    r.kernel("b", 410, 500, launched=(400, 405))
    return r.tables()


def test_no_change_is_the_measured_step(stalled):
    assert predict(stalled, []).step_ns == stalled.steps.step_ns == 500_000


def test_host_work_under_the_device_is_uncovered_when_the_rest_goes(stalled):
    # Of 390 µs between the launches 380 run on: b starts when a has ended, 310 µs earlier, though 360 were removed.
    change = partial(scale_host, stretches=span(30_000, 390_000), factor=0.0)
    assert predict(stalled, [change]).step_ns == pytest.approx(190_000)


def test_changes_are_replayed_together_not_added(stalled):
    shorter = partial(scale_kernels, trace=stalled.trace, pattern="^a$", factor=0.5)
    less = partial(scale_host, stretches=span(30_000, 390_000), factor=0.0)
    # Alone a shorter a saves nothing, for the launch of b is late.
    assert predict(stalled, [shorter]).step_ns == 500_000
    # Together: b is launched at 40, starts at 60 when a has ended, and takes 90.
    assert predict(stalled, [less, shorter]).step_ns == pytest.approx(150_000)


def test_the_path_tiles_the_window_and_names_what_it_consists_of(stalled):
    graph = graph_of(stalled)
    path = critical_path(graph, simulate(graph))
    # The host to the launch of b at 400, its delay of 10, and b: a is not on the path.
    assert [stalled.name(int(row)) for row in graph.row[path.node]] == ["cudaLaunchKernel", "cudaLaunchKernel", "b"]
    assert path.duration_ns.sum() + path.delay_ns.sum() == 500_000
    assert shares(stalled, graph, path) == pytest.approx(
        {"host": 0.8, "compute": 0.18, "communication": 0, "copy": 0, "latency": 0.02}
    )


def test_a_finding_saves_what_its_replay_says(stalled):
    # Python from 100 to 390 goes: b is launched at 110 and starts at 120. What Python did under a was hidden.
    assert stalled.causes.totals()["python-stall"] == 290_000
    saved = replayed_savings(stalled, Finding("python-stall", "", 290_000))
    assert saved == pytest.approx((290_000, 290_000))


def test_a_wait_that_hides_host_work_saves_less_than_its_gap(recording):
    # After the sync at 82 the device is idle to 120. Without it b is launched at 30 + 28 = 58, and follows a at 80.
    r = recording()
    r.step(1, 0, 150)
    r.kernel("a", 20, 80, launched=(10, 15))
    r.op("aten::item", 28, 83)
    r.runtime("cudaStreamSynchronize", 30, 82)
    r.op("aten::mm", 84, 130)
    r.kernel("b", 120, 150, launched=(110, 115))
    t = r.tables()
    saved = replayed_savings(t, Finding("host-sync", "", 40_000))
    assert t.causes.totals().get("host-sync")
    assert saved == pytest.approx((40_000, 40_000))


def test_what_is_not_the_host_s_is_not_guessed(stalled):
    assert replayed_savings(stalled, Finding("kernel-latency", "", 1000)) is None


def test_without_a_device_nothing_is_promised(recording):
    r = recording(devices=())
    r.step(1, 0, 100)
    r.op("aten::mm", 0, 90)
    assert replayed_savings(r.tables(), Finding("data-stall", "", 1000)) is None


def test_a_saving_is_never_negative_nor_above_the_step(stalled):
    for rule in stalled.causes.rules:
        saved = replayed_savings(stalled, Finding(rule, "", 1000))
        assert saved is None or 0 <= saved[0] <= saved[1] <= stalled.steps.step_ns
    assert np.isfinite(predict(stalled, []).error)
