"""The operators that Python calls itself, and the function that calls most of them."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import dataclass
from diagnose.model.intervals import contains
from diagnose.tables import Tables, host_table
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import LOADER_NEXT
from diagnose.tables.optimizer_spans import updates

__all__ = ["Issuer", "called_by_python", "names_of"]

_ENGINE = "autograd::engine::"


@dataclass(frozen=True, slots=True)
class Issuer:
    """A function that calls operators itself, not through a module's layers; figures are for a step."""

    frame: str  # as the profiler names it
    file: str
    line: int  # the function's first; of samples the one that most are at
    function: str
    num: float  # operators
    share: float  # of the operators that Python calls outside the optimizer
    reads: float  # numbers read back, each with a call of its own
    median_ns: int  # of an operator
    in_model: bool  # a module calls it
    names: tuple[str, ...]  # of the commonest operators
    module: str = ""  # the one that it calls again and again, and that calls most of these operators
    calls: float = 0.0  # of that module
    calls_modules: bool = False  # it calls some again and again, as a loop over time does


@host_table
def called_by_python(t: Tables) -> Rows:
    """Return the operators of the training thread that Python calls itself, outside of the loader and the optimizer."""
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    is_engine = np.array([name.startswith(_ENGINE) for name in t.trace.names], bool)
    outer = outer[~is_engine[t.trace.events.name[outer]]]
    start = t.trace.events.start[outer]
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    kept: Rows = outer[~contains(updates(t), start) & ~contains(loading, start)]
    return kept


def names_of(t: Tables, rows: Rows) -> tuple[str, ...]:
    """Return the names of events."""
    names = t.trace.names
    return tuple([names[i] for i in t.trace.events.name[rows].tolist()])
