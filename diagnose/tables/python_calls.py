"""The operators that Python calls itself, and the function that calls most of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import contains
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import LOADER_NEXT

__all__ = ["Issuer", "called_by_python", "names_of", "repeats"]

_ENGINE = "autograd::engine::"
MIN_TIMES = 4  # that the body of a loop runs in a step
MAX_SEEN = 1000  # operators of a step, the first ones


@dataclass(frozen=True, slots=True)
class Issuer:
    """A function that calls operators itself, not through a module's layers; figures are for a step."""

    frame: str  # as the profiler names it
    file: str
    line: int | None  # the function's first; of samples the one that most are at; None for one around all steps
    function: str
    num: float  # operators
    share: float  # of the operators that Python calls outside the optimizer
    reads: float  # numbers read back, each with a call of its own
    median_ns: int  # of an operator
    in_model: bool  # a module calls it
    names: tuple[str, ...]  # of the commonest operators
    repeats: float = 1.0  # share of the operators after which the same comes again, at the same distance in the step


def called_by_python(t: Tables) -> Rows:
    """Return the operators of the training thread that Python calls itself, outside of the loader and the optimizer."""
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    is_engine = np.array([name.startswith(_ENGINE) for name in t.trace.names], bool)
    outer = outer[~is_engine[t.trace.events.name[outer]]]
    start = t.trace.events.start[outer]
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    kept: Rows = outer[~contains(t.updates, start) & ~contains(loading, start)]
    return kept


def names_of(t: Tables, rows: Rows) -> tuple[str, ...]:
    """Return the names of events."""
    names = t.trace.names
    return tuple([names[i] for i in t.trace.events.name[rows].tolist()])


def repeats(t: Tables, rows: Rows) -> float:
    """Return which share of a function's operators in a usual step has the same one behind it at one distance, 0 to 1.

    That is the length of a loop's body, which runs at least four times; operators of lines that run once rarely agree.
    """
    step = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right")
    num = np.bincount(step)
    usual = np.argsort(num, kind="stable")[-(np.count_nonzero(num) + 1) // 2]  # the middle one of those with any
    names = t.trace.events.name[rows[step == usual]][:MAX_SEEN]
    shares = [float((names[k:] == names[:-k]).mean()) for k in range(1, len(names) // MIN_TIMES + 1)]
    return max(shares, default=0.0)
