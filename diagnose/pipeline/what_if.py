"""Answers "what would the step take if": the steady steps replayed with one change after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.model.capture import Capture
from diagnose.model.forecast import Forecast
from diagnose.pipeline.rank import build_tables, find_in_rank
from diagnose.pipeline.what_if_changes import with_workers, without_syncs_at
from diagnose.replay import Change, critical_path, graph_of, predict, scale_kernels, shares, simulate
from diagnose.replay.buckets import with_buckets
from diagnose.replay.graph import Graph
from diagnose.replay.models import effect_of
from diagnose.replay.predict import without_cause
from diagnose.tables import Tables
from diagnose.text.plain_text import one_line
from diagnose.trace_reader import open_captures

__all__ = ["Answer", "Asked", "ask", "parse_place", "parse_scale"]


NEW_LINE = "\n"
RELIABLE = 0.03  # the error up to which a replay is taken to know what the step waits for
MAX_FACTOR = 1000.0  # no other device is slower by more


@dataclass(frozen=True, slots=True)
class Asked:
    """The changes, in the order in which they are made."""

    apply: tuple[str, ...] = ()  # ids of prescriptions
    without: tuple[str, ...] = ()  # rules whose cause is taken away whole
    no_sync: tuple[tuple[str, int], ...] = ()  # lines that wait for the device
    workers: int | None = None  # of the DataLoader
    bucket_mb: float | None = None  # of DistributedDataParallel
    scale: tuple[tuple[str, float], ...] = ()  # kernels, by a pattern of their names, and the share of their time


@dataclass(frozen=True, slots=True)
class Answer:
    """What the replay says; times in ns."""

    forecasts: tuple[Forecast, ...]  # the first is the step as measured
    error: float
    path: tuple[tuple[str, float], ...]  # category and its share of the critical path then, the largest first

    @property
    def now_ns(self) -> float:
        """Return the step as measured."""
        return self.forecasts[0].step_ns

    @property
    def then_ns(self) -> float:
        """Return the step after all changes."""
        return self.forecasts[-1].step_ns

    def text(self) -> str:
        """Return the answer for a terminal."""
        gain = 1 - self.then_ns / self.now_ns if self.now_ns else 0.0
        listed = ", ".join(f"{one_line(name)} {share:.0%}" for name, share in self.path)
        off = f"Replayed with usual delays, the unchanged step comes out {abs(self.error):.1%} off the measured one"
        doubt = ": too much to rely on this; the trace does not show what its tasks waited for."
        return (
            f"{NEW_LINE.join(self._lines())}\n"
            f"step then  {self.then_ns / 1e6:.2f} ms ({gain:.0%} shorter)\n"
            f"its critical path: {listed}\n"
            f"{off}{doubt if abs(self.error) > RELIABLE else '.'}"
        )

    def to_json(self) -> str:
        """Return the answer as JSON; times are ms."""
        return json.dumps(
            {
                "forecasts": [
                    {"title": f.title, "step_ms": _ms(f.step_ns), "range_ms": [_ms(f.low_ns), _ms(f.high_ns)]}
                    for f in self.forecasts
                ],
                "replay": {"error_share": self.error},
                "critical_path": dict(self.path),
            },
            indent=2,
        )

    def _lines(self) -> Iterator[str]:
        yield f"step now   {self.now_ns / 1e6:.2f} ms"
        for i, f in enumerate(self.forecasts[1:]):
            span = f"  ({_ms(f.low_ns):.2f} to {_ms(f.high_ns):.2f} ms)" if f.high_ns > f.low_ns * 1.001 else ""
            yield f"  {'and' if i else 'with'} {one_line(f.title)}: {f.step_ns / 1e6:.2f} ms{span}"


@dataclass(frozen=True, slots=True)
class _Step:
    """One change: at least, at most, and in between."""

    title: str
    least: Change
    most: Change
    middle: Change


def parse_scale(text: str) -> tuple[str, float]:
    """Read PATTERN=FACTOR, or kernel~PATTERN=FACTOR.

    Raises:
        UsageError: it is not of that form, or the factor is negative or beyond any machine.
    """
    pattern, _, factor = text.removeprefix("kernel~").rpartition("=")
    try:
        value = float(factor)
        re.compile(pattern)
    except (ValueError, re.error):
        raise UsageError(f"{text} is not of the form PATTERN=FACTOR, such as 'gemm=0.5'.") from None
    if not pattern or not 0 <= value <= MAX_FACTOR:
        raise UsageError(
            f"{text} is not of the form PATTERN=FACTOR with a factor from 0 to {MAX_FACTOR:g}, such as 'gemm=0.5'."
        )
    return pattern, value


def parse_place(text: str) -> tuple[str, int]:
    """Read FILE:LINE.

    Raises:
        UsageError: it is not of that form.
    """
    file, _, line = text.rpartition(":")
    if not file or not line.isdecimal() or int(line) < 1:
        raise UsageError(f"{text} is not of the form FILE:LINE, such as train.py:42.")
    return file, int(line)


def ask(path: str | Path, asked: Asked) -> Answer:
    """Replay one rank's steady steps with the changes, one after the other.

    Raises:
        InputError: the trace cannot be read, or holds several ranks.
        UsageError: a name is unknown, or what it names takes no time here or cannot be replayed.
    """
    captures = open_captures([path])
    if len(captures) > 1:
        raise InputError(f"{path} holds {len(captures)} ranks; name the trace file of one.")
    t = _tables(captures[0], asked)
    if t.device_id < 0 and (asked.scale or asked.no_sync):
        raise InputError(f"{path} holds no device work to replay; trace on a machine with a GPU.")
    least = most = middle = graph_of(t)
    now = t.steps.step_ns
    forecasts = [Forecast((), "now", now, now, now)]
    for step in _steps(t, captures[0], asked):
        least, most, middle = step.least(least), step.most(most), step.middle(middle)
        taken = [simulate(graph).window_ns / t.steps.num for graph in (middle, most, least)]
        forecasts.append(Forecast((), step.title, taken[0], min(taken), max(taken)))
    path_shares = shares(t, middle, critical_path(middle, simulate(middle)))
    ranked = tuple(sorted(((k, v) for k, v in path_shares.items() if v > 0), key=lambda item: -item[1]))
    return Answer(tuple(forecasts), predict(t, ()).error, ranked)


def _tables(capture: Capture, asked: Asked) -> Tables:
    """Return the tables of the timing trace, or of the one with lines where a line was asked about."""
    named = capture.attribution if asked.no_sync and capture.attribution is not None else capture.trace
    return build_tables(capture, named)


def _steps(t: Tables, capture: Capture, asked: Asked) -> Iterator[_Step]:
    if asked.apply:
        yield from _applied(t, capture, asked.apply)
    for rule in asked.without:
        yield _whole(f"no {rule}", _without(t, rule))
    for file, line in asked.no_sync:
        change = without_syncs_at(t, file, line)
        if change is None:
            raise UsageError(f"No wait for the device was recorded at {file}:{line} in the steady steps.")
        yield _whole(f"no wait for the device at {file}:{line}", change)
    if asked.workers is not None:
        change = with_workers(t, asked.workers)
        if change is None:
            raise UsageError("The steady steps do not wait for a DataLoader, so workers change nothing.")
        yield _whole(f"{asked.workers} loader workers", change)
    if asked.bucket_mb is not None:
        change = with_buckets(t, asked.bucket_mb)
        if change is None:
            raise UsageError(
                "Buckets of another size cannot be replayed: the trace holds no reductions with recorded sizes, or "
                "they take far longer than their bytes explain, waiting for other ranks."
            )
        yield _whole(f"gradient buckets of {asked.bucket_mb:g} MB", change)
    for pattern, factor in asked.scale:
        yield _whole(f"kernels ~ {pattern} in {factor:g} of their time", _scaled(t, pattern, factor))


def _applied(t: Tables, capture: Capture, ids: tuple[str, ...]) -> Iterator[_Step]:
    """Yield the change of each prescription; its part of the cause is what its bounds say of the finding's cost."""
    # Found in the very window that is replayed: tasks of one window mean nothing in the other.
    found = find_in_rank(capture if t.trace is capture.trace else replace(capture, trace=t.trace, attribution=None))
    known = {p.id: p for p in found.prescribed}
    findings = {f.rule: f for f in found.findings}
    for name in ids:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(f"This trace has no prescription {name}; there are: {listed}.")
        p = known[name]
        finding = findings[p.rule]
        least, most = (min(max(saved / max(finding.lost_ns, 1.0), 0.0), 1.0) for saved in p.saves_ns)
        effect = effect_of(t, finding, name, (least, most))
        if effect.most is None or effect.middle is None:
            raise UsageError(f"The replay cannot apply {name}: a dependency graph does not show what it changes.")
        yield _Step(name, effect.least or _unchanged, effect.most, effect.middle)


def _whole(title: str, change: Change) -> _Step:
    return _Step(title, change, change, change)


def _unchanged(graph: Graph) -> Graph:
    return graph


def _without(t: Tables, rule: str) -> Change:
    known = {name for name, _ in t.claims}
    if rule not in known:
        raise UsageError(f"{rule} is no rule of idle time; there are {', '.join(sorted(known))}.")
    if not len(t.causes.of(rule)):
        raise UsageError(f"{rule} takes no time in this trace, so it cannot be taken away.")
    change = without_cause(t, rule)
    if change is None:
        raise UsageError(f"The replay cannot take {rule} away: its cause is not work or waiting of the host.")
    return change


def _scaled(t: Tables, pattern: str, factor: float) -> Change:
    if not any(re.search(pattern, t.name(int(row))) for row in t.tasks.row):
        raise UsageError(f"No kernel in the steady steps has a name that '{pattern}' finds.")
    return partial(scale_kernels, trace=t.trace, pattern=pattern, factor=factor)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)
