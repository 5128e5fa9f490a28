"""What calls of the user's take with all that Python does in them: in the timing window, and of the run's time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.dataflow import Frame
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, union
from diagnose.model.limits import MAJORITY
from diagnose.model.records import PlaceRecord, UnreadRecord
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.run_steps import PLAIN, samples_in

__all__ = ["Chain", "operators_in", "run_share", "time_in"]

Chain: TypeAlias = tuple[PlaceRecord, ...]  # a statement, after the calls that lead to it


def operators_in(stacks: Sequence[tuple[Frame, ...]], chains: Iterable[Chain]) -> list[int]:
    """Return which stacks, innermost line first, lead through one of some statements."""
    wanted, known = [tuple(reversed(chain)) for chain in chains], dict[tuple[Frame, ...], bool]()
    for stack in stacks:
        if stack not in known:
            lines = tuple(frame[:2] for frame in stack)
            known[stack] = any(
                lines[n : n + len(each)] == each for each in wanted for n in range(len(lines) - len(each) + 1)
            )
    return [i for i, stack in enumerate(stacks) if known[stack]]


def time_in(t: Tables, flow: Flow, chains: tuple[Chain, ...]) -> Intervals:
    """Return when the timing window runs some statements: their operators, and Python between these and around them.

    Between two of their operators nothing else runs. Python that lies between one of them and another, or that calls no
    operators, is theirs if most samples are at lines that the run's samples have nowhere else.
    """
    mine = operators_in([one.stack for one in flow.found.graph.operators], chains)
    events, every = t.trace.events, outermost(t.trace, t.in_window(host_rows(t.trace, t.main, Kind.OP)))
    own = np.concatenate([np.empty(0, np.intp), *(flow.rows[i] for i in mine)])
    own_start = np.sort(events.start[own])
    at = np.searchsorted(own_start, events.end[every]) - np.searchsorted(own_start, events.start[every])
    is_mine = at > 0
    start, end = events.end[every[:-1]], events.start[every[1:]]
    whole, edge = is_mine[:-1] & is_mine[1:], ~(is_mine[:-1] & is_mine[1:])
    gaps = Intervals(start, np.maximum(start, end))
    pairs = events.name[every[:-1]].astype(np.int64) * len(t.trace.names) + events.name[every[1:]]
    keys = pairs * 4 + is_mine[:-1] * 2 + is_mine[1:]
    theirs = edge & _sampled(t, gaps, keys, chains)
    taken = whole | theirs
    return union(t.covering(every[is_mine]), (gaps.start[taken], gaps.end[taken]))


def _sampled(t: Tables, gaps: Intervals, keys: Ints, chains: tuple[Chain, ...]) -> Mask:
    """Return which gaps are of kinds in which most samples are at lines of these statements."""
    samples, run = t.capture.samples, t.capture.run
    if samples is None or run is None or not len(keys):
        return np.zeros(len(keys), bool)
    inside = _leads(run.paths, chains)
    seen, own = Counter[PlaceRecord](), Counter[PlaceRecord]()
    for row in run.path.tolist():
        seen[run.paths[row][0][:2]] += 1
        own[run.paths[row][0][:2]] += bool(inside[row])
    places = np.array([2 * own[place[:2]] > seen[place[:2]] for place in samples.places] or [False], bool)
    time = samples.time_ns - t.trace.epoch_ns
    gap = np.searchsorted(gaps.start, time, side="right") - 1
    fits = (gap >= 0) & (samples.place >= 0)
    fits[fits] = time[fits] < gaps.end[gap[fits]]
    is_own = fits & places[samples.place]
    found, every = Counter(keys[gap[is_own]].tolist()), Counter(keys[gap[fits]].tolist())
    theirs = [key for key, num in found.items() if num > MAJORITY * every[key]]
    return among(keys, np.array(theirs, np.int64))


def _leads(paths: Sequence[tuple[tuple[str, int, str], ...]], chains: Iterable[Chain]) -> Mask:
    """Return which paths lead through one of some statements; of long ones the middle is not known."""
    found = ({place[:2] for place in path} for path in paths)
    return np.array([any(each >= set(chain) for chain in chains) for each in found] or [False], bool)


def run_share(t: Tables, one: UnreadRecord) -> tuple[float, int]:
    """Return which share of the time of the run's plain steps some statements take, and by how many samples."""
    run = t.capture.run
    if run is None or not len(run.path):
        return 0.0, 0
    of_steps = samples_in(run, np.flatnonzero(run.state == PLAIN), run.sampled_ns)
    mine = of_steps & _leads(run.paths, one.chains)[run.path]
    return float(mine.sum()) / max(int(of_steps.sum()), 1), int(mine.sum())
