"""Whether the recorded program runs no Python, as inference in C++ does."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.events import Kind
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, LOADER_NEXT, OPTIMIZER_STEP, STEP_MARK, ZERO_GRAD, names_of, rows_of

__all__ = ["runs_no_python"]

# Marks that Python code of torch and of the libraries around it makes.
_PYTHON = re.compile(
    r"\.py\(\d+\)|^nn\.Module|^<built-in|^enumerate\(|DataParallel|^FSDP::|DeepSpeed|^Torch-Compiled Region|^## Call "
)
_MARKS = (_PYTHON, STEP_MARK, LOADER_NEXT, OPTIMIZER_STEP, ZERO_GRAD, BACKWARD)
_QUALIFIED = r"^[A-Za-z_][\w-]*::[A-Za-z_~]"  # Stage::run: a name of C++
MIN_QUALIFIED = 0.5  # of the annotations
MIN_ANNOTATIONS = 10


def runs_no_python(t: Tables) -> bool:
    """Return whether nothing shows Python and the program's own marks have names of C++.

    A recording without marks shows neither: Python is taken for what runs between its operators then.
    """
    capture, trace = t.capture, t.trace
    if capture.info is not None or capture.samples is not None or len(rows_of(trace, Kind.PYTHON, Kind.GC)):
        return False
    names = [trace.names[i] for i in names_of(trace, Kind.OP, Kind.ANNOTATION)]
    if any(mark.search(name) for name in names for mark in _MARKS):
        return False
    rows = rows_of(trace, Kind.ANNOTATION)
    is_qualified = np.array([re.match(_QUALIFIED, name) is not None for name in trace.names], bool)
    return bool(len(rows) >= MIN_ANNOTATIONS and is_qualified[trace.events.name[rows]].mean() >= MIN_QUALIFIED)
