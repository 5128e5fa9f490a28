"""A graph replays as its definition says: each node when all that it waits for allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.replay import Edge, build, simulate
from tests.replay.test_graph import two_steps


def node_by_node(graph):
    """What a replay is defined as: each node when all that it waits for allows, none before the window."""
    begin = float(graph.start[0])
    ends = np.full(len(graph), begin)
    waits = [[] for _ in range(len(graph))]
    for source, target, delay in zip(graph.src, graph.dst, graph.delay, strict=True):
        waits[target].append((source, delay))
    for node in range(len(graph)):
        ends[node] = max([begin, *(ends[source] + delay for source, delay in waits[node])]) + graph.duration[node]
    return ends


def random_graph(recording, seed, *, streams, skewed=0.0):
    """A host that launches on streams, waits for tasks now and then, and events between streams; delays at random.

    A share ``skewed`` of the delays is negative, as where the clocks of host and device differ.
    """
    rng = np.random.default_rng(seed)
    edges, last_host, last = [], 0, {}
    for node in range(1, 600):
        what = rng.random()
        if what < 0.5:
            if not last or what > 0.02:  # else the host does what a task lets it do, as a callback does
                edges.append((last_host, node, Edge.THREAD))
            if last and what < 0.04:
                edges.append((rng.choice(list(last.values())), node, Edge.WAIT))
            last_host = node
            continue
        stream = int(rng.integers(streams))
        if what > 0.52:  # else a task whose launch was not recorded
            edges.append((last_host, node, Edge.LAUNCH))
        if stream in last:
            edges.append((last[stream], node, Edge.STREAM))
        if last and what > 0.95:
            edges.append((rng.choice(list(last.values())), node, Edge.EVENT))
        last[stream] = node
    src, dst, kind = (np.array(column, np.intp) for column in zip(*edges, strict=True))
    delay = rng.integers(0, 40, len(src)) * np.where(rng.random(len(src)) < skewed, -100.0, 1.0)
    graph = build(two_steps(recording))
    return replace(
        graph,
        row=np.arange(600),
        start=np.full(600, 1000),
        duration=rng.integers(0, 50, 600).astype(float) * (np.arange(600) > 0),
        src=src,
        dst=dst,
        kind=kind.astype(np.int8),
        delay=delay,
        binding=np.ones(len(src), bool),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("skewed", [0.0, 0.05])
def test_a_graph_replays_as_node_by_node(recording, seed, streams, skewed):
    graph = random_graph(recording, seed, streams=streams, skewed=skewed)
    np.testing.assert_allclose(simulate(graph).end, node_by_node(graph), rtol=0, atol=1e-6)


def test_a_graph_without_some_of_its_edges_replays_as_node_by_node(recording):
    graph = random_graph(recording, 2, streams=2)
    simulate(graph)
    fewer = graph.with_edges(np.random.default_rng(3).random(len(graph.src)) < 0.8)
    np.testing.assert_allclose(simulate(fewer).end, node_by_node(fewer), rtol=0, atol=1e-6)


def test_a_graph_without_any_edge(recording):
    graph = build(two_steps(recording))
    bare = graph.with_edges(np.zeros(len(graph.src), bool))
    assert simulate(bare).end.tolist() == node_by_node(bare).tolist()


@pytest.mark.parametrize("name", ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"])
def test_a_copy_that_is_all_of_a_recording_is_replayed(recording, name):
    r = recording()
    r.copy(name, 0, 3684)
    answer = r.diagnosis()  # a fault of the replay would be raised
    assert answer.replay_error == 0.0
