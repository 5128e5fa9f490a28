"""Answers "what would the step take if": the steady steps replayed with changes, all of them at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.examine import tables_of
from diagnose.reading import open_captures
from diagnose.replay import Change, critical_path, graph_of, predict, scale_kernels, shares, simulate
from diagnose.replay.predict import without_cause
from diagnose.tables import Tables

__all__ = ["Answer", "Asked", "ask", "parse_scale"]


RELIABLE = 0.03  # the error up to which a replay is taken to know what the step waits for


@dataclass(frozen=True, slots=True)
class Asked:
    """The changes: rules whose cause is taken away, and kernels (by a pattern of their names) that are scaled."""

    without: tuple[str, ...] = ()
    scale: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the replay says; times in ns."""

    now_ns: float
    then_ns: float
    error: float
    path: tuple[tuple[str, float], ...]  # category and its share of the critical path, the largest first

    def text(self) -> str:
        """Return the answer for a terminal."""
        gain = 1 - self.then_ns / self.now_ns if self.now_ns else 0.0
        listed = ", ".join(f"{name} {share:.0%}" for name, share in self.path)
        off = f"Replayed with usual delays, the unchanged step comes out {abs(self.error):.1%} off the measured one"
        doubt = ": too much to rely on this; the trace does not show what its tasks waited for."
        return (
            f"step now   {self.now_ns / 1e6:.2f} ms\n"
            f"step then  {self.then_ns / 1e6:.2f} ms ({gain:.0%} shorter)\n"
            f"its critical path: {listed}\n"
            f"{off}{doubt if abs(self.error) > RELIABLE else '.'}"
        )


def parse_scale(text: str) -> tuple[str, float]:
    """Read PATTERN=FACTOR.

    Raises:
        UsageError: it is not of that form, or the factor is negative.
    """
    pattern, _, factor = text.rpartition("=")
    try:
        value = float(factor)
        re.compile(pattern)
    except (ValueError, re.error):
        raise UsageError(f"{text} is not of the form PATTERN=FACTOR, such as 'gemm=0.5'.") from None
    if not pattern or not 0 <= value < float("inf"):
        raise UsageError(f"{text} is not of the form PATTERN=FACTOR with a factor of 0 or more, such as 'gemm=0.5'.")
    return pattern, value


def ask(path: str | Path, asked: Asked) -> Answer:
    """Replay one rank's steady steps with the changes.

    Raises:
        InputError: the trace cannot be read, holds several ranks, or no device work.
        UsageError: a rule is unknown, claims nothing here, or cannot be taken away; a pattern finds no kernel.
    """
    captures = open_captures([path])
    if len(captures) > 1:
        raise InputError(f"{path} holds {len(captures)} ranks; name the trace file of one.")
    t = tables_of(captures[0], captures[0].trace)
    if t.device_id < 0:
        raise InputError(f"{path} holds no device work to replay; trace on a machine with a GPU.")
    changes = [_without(t, rule) for rule in asked.without] + [_scaled(t, *pair) for pair in asked.scale]
    after = predict(t, changes)
    graph = graph_of(t)
    for change in changes:
        graph = change(graph)
    path_shares = shares(t, graph, critical_path(graph, simulate(graph)))
    ranked = tuple(sorted(((k, v) for k, v in path_shares.items() if v > 0), key=lambda item: -item[1]))
    return Answer(predict(t, ()).step_ns, after.step_ns, after.error, ranked)


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
