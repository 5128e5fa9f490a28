"""What Python calls itself, and whether the recorded program runs any, unlike inference in C++."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import contains
from diagnose.model.limits import FEWEST, MAJORITY
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import BACKWARD, LOADER_NEXT, OPTIMIZER_STEP, STEP_MARK, ZERO_GRAD, rows_of
from diagnose.tables.names import names_of as distinct_names

# A line to call what other lines called again. An environment's step computes what no other line called.
PASSES_ON = re.compile(r"(\.backward|(?<!env)(?<!envs)\.step)\(|autograd\.grad\(")
LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|numpy|diagnose)/|^<")
READ = "aten::item"
HEAVY = re.compile(
    r"^aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|conv\w*|_?convolution|embedding\w*|lstm\w*|gru\w*|rnn_\w+|"
    r"\w*attention\w*|batch_norm|layer_norm|multi_head\w*)$"
)
_ENGINE = "autograd::engine::"


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
    # Of the first operators of the step.
    names = t.trace.events.name[rows[step == usual]][:1000]
    shares = [float((names[k:] == names[:-k]).mean()) for k in range(1, len(names) // FEWEST + 1)]
    return max(shares, default=0.0)


# Marks that Python code of torch and of the libraries around it makes.
_PYTHON = re.compile(
    r"\.py\(\d+\)|^nn\.Module|^<built-in|^enumerate\(|DataParallel|^FSDP::|DeepSpeed|^Torch-Compiled Region|^## Call "
)
_MARKS = (_PYTHON, STEP_MARK, LOADER_NEXT, OPTIMIZER_STEP, ZERO_GRAD, BACKWARD)
_QUALIFIED = r"^[A-Za-z_][\w-]*::[A-Za-z_~]"  # Stage::run: a name of C++
MIN_ANNOTATIONS = 10


def runs_no_python(t: Tables) -> bool:
    """Return whether nothing shows Python and the program's own marks have names of C++.

    A recording without marks shows neither: Python is taken for what runs between its operators then.
    """
    capture, trace = t.capture, t.trace
    if capture.info is not None or capture.samples is not None or len(rows_of(trace, Kind.PYTHON, Kind.GC)):
        return False
    names = [trace.names[i] for i in distinct_names(trace, Kind.OP, Kind.ANNOTATION)]
    if any(mark.search(name) for name in names for mark in _MARKS):
        return False
    rows = rows_of(trace, Kind.ANNOTATION)
    is_qualified = np.array([re.match(_QUALIFIED, name) is not None for name in trace.names], bool)
    return bool(len(rows) >= MIN_ANNOTATIONS and is_qualified[trace.events.name[rows]].mean() >= MAJORITY)
