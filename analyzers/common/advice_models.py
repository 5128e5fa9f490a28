"""What a replay does for advice whose effect is more than a share of the finding's cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, distinct, total, union
from diagnose.replay.effects import Effect, effect_of_tasks
from diagnose.replay.graph import Graph
from diagnose.replay.transforms import drop_waits, scale_host, shorten_tasks
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD
from diagnose.tables.op_launches import host_time_behind_first
from diagnose.text.numbers import percent

Model: TypeAlias = Callable[[Tables, Finding], Effect | None]

MAX_SMALL_NS = 20_000  # of a kernel: the kernels of one row each become one


def with_launches(
    least: float,
    most: float,
    what: str,
    *,
    launches: float | None = None,
    host: Callable[[Tables], Intervals] | None = None,
) -> Model:
    """Return the effect of shares of the finding's tasks that go, with as much of what launches them.

    Of the launches at least the share ``launches`` goes, where it is given. ``host`` is their time, that of the tasks'
    operators where it is None.
    """

    def effect(t: Tables, finding: Finding) -> Effect | None:
        if not len(finding.tasks):
            return None
        length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
        rows = distinct(t.operators[finding.tasks])
        left = (1 - (least if launches is None else launches), 1 - most)
        return effect_of_tasks(
            t,
            finding,
            finding.tasks,
            (least * length, most * length),
            f"Between {percent(least, 0)} and {percent(most, 0)} of {what} goes, with its launches.",
            host=host(t) if host else t.covering(rows[rows >= 0]),
            host_left=left,
            pauses_left=left,
            frees_host=True,
        )

    return effect


def fused_attention(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of one kernel: what stands between the products goes, and the second one's launch."""
    least = 0.5
    found = t.attention
    if not found or not len(finding.tasks):
        return None
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    between, products = ([getattr(attention, part) for attention in found] for part in ("between", "products"))
    # A kernel between the products reads the scores and writes them; a product does one of the two.
    moving = [np.minimum(length[p], length[b].min() / 2) for b, p in zip(between, products, strict=True)]
    goes = np.concatenate([*(length[b] for b in between), *moving])
    surely = np.concatenate([*(least * length[b] for b in between), *(0.0 * part for part in moving)])
    return effect_of_tasks(
        t,
        finding,
        np.concatenate([*between, *products]),
        (surely, goes),
        f"Between {percent(least, 0)} and all of what runs between the products goes, with its launches; at most "
        "the products move no scores any more.",
        host=host_time_behind_first(t, [np.concatenate(run) for run in zip(between, products, strict=True)]),
        host_left=(1 - least, 0.0),
        pauses_left=(1 - least, 0.0),
        frees_host=True,
    )


def vectorised_loop(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect without a loop's calls, their waits and their backward, at most without its small kernels too.

    None where these are not known.
    """
    least, most = 0.5, 0.95
    own = t.issued
    if not finding.facts.get("issuer") or "kind" in finding.facts or not total(own):
        return None
    events, tasks, rows = t.trace.events, t.tasks, t.host_rows(Kind.OP)
    # The backward of what the loop called has the same sequence numbers.
    numbers = events.sequence[rows[contains(own, events.start[rows])]]
    nodes = t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)
    host = union(own, t.covering(nodes[among(events.sequence[nodes], numbers[numbers >= 0])]))
    calls = t.blocking_calls
    calls = calls[contains(own, events.start[calls])]
    length = (tasks.end - tasks.start).astype(np.float64)
    mine = (tasks.launch >= 0) & contains(host, events.start[np.maximum(tasks.launch, 0)])
    mine &= length <= MAX_SMALL_NS
    order = np.argsort(tasks.row[mine], kind="stable")
    rows, less = tasks.row[mine][order], most * length[mine][order]

    def at_most(graph: Graph) -> Graph:
        shorter = scale_host(drop_waits(graph, calls), host, 1 - most)
        return shorten_tasks(shorter, rows, less) if len(rows) else shorter

    return Effect(
        lambda graph: scale_host(graph, own, 1 - least),
        at_most,
        t.steps.step_ns,
        f"Between {percent(least, 0)} of the loop's own calls and {percent(most, 0)} of these, of their backward "
        "and of their small kernels go away.",
    )
