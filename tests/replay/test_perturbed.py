"""Graphs of recorded traces, changed at one place: the window must move exactly as the longest path through it says.

Measured start times cannot say this: a replay that copied them would not move at all, or by the same for all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.replay import critical_path, simulate

LARGE = ("tl_owlv2_h100", "tl_rn_actckpt_ddp_mi300x", "hta_rn_ddp_v100_ns")
NAMES = (
    "kineto_rn50_nw0_a", "luatil_gpt_compile", "param_dlrm_v100_r1", "tl_bert_small_h100", "tl_qwen05b_h100",
    "hta_minitoy_mi250", *(pytest.param(name, marks=pytest.mark.full) for name in LARGE),
)  # fmt: skip


def longest_after(graph):
    """Return for each node how long the window goes on after its end, along the longest chain: the way back."""
    after = np.zeros(len(graph))
    order = np.argsort(-graph.src, kind="stable")
    for edge in order.tolist():
        source, target = int(graph.src[edge]), int(graph.dst[edge])
        after[source] = max(after[source], graph.delay[edge] + graph.duration[target] + after[target])
    return after


def lengthened(graph, node, by):
    duration = graph.duration.copy()
    duration[node] += by
    return simulate(replace(graph, duration=duration))


@pytest.fixture(params=NAMES)
def case(request, recorded_graph):
    t, graph = recorded_graph(request.param)
    return t, graph, simulate(graph)


def test_a_kernel_on_the_path_doubled_lengthens_the_window_by_itself(case):
    _, graph, times = case
    path = critical_path(graph, times)
    tasks = path.node[graph.is_task[path.node] & (path.duration_ns > 0)]
    assert len(tasks)
    for node in tasks[:: max(1, len(tasks) // 5)].tolist():
        longer = lengthened(graph, node, graph.duration[node])
        assert longer.window_ns - times.window_ns == pytest.approx(graph.duration[node], abs=1)


def test_a_kernel_off_the_path_first_uses_up_its_slack(case):
    _, graph, times = case
    slack = times.end.max() - times.end - longest_after(graph)
    hidden = np.flatnonzero(graph.is_task & (slack > 2) & (graph.duration > 0))
    for node in hidden[:: max(1, len(hidden) // 4)].tolist():
        for by in (slack[node] / 2, slack[node], slack[node] + 5_000):
            moved = lengthened(graph, node, by).window_ns - times.window_ns
            assert moved == pytest.approx(max(0.0, by - slack[node]), abs=1)


def test_slack_is_never_negative_and_zero_on_the_path(case):
    _, graph, times = case
    slack = times.end.max() - times.end - longest_after(graph)
    assert slack.min() >= -1
    assert np.abs(slack[critical_path(graph, times).node]).max() <= 1


def test_unchanged_each_step_ends_when_it_did(case):
    t, graph, times = case
    assert times.window_ns == pytest.approx(graph.end.max() - graph.start[0], rel=1e-6)
    assert len(graph.marks) == (t.steps.end > t.steps.window_start).sum()
