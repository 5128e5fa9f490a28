"""Matches each device task of the timing window with the same task in the attribution window, which recorded shapes.

A step is recognised by the names of its tasks in the order of their launches: where a step of the attribution window
has the very same list, the two are the same work, task by task. Steps without a match stay without shapes.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.intervals import distinct
from diagnose.tables import Tables

__all__ = ["match_tasks"]


def match_tasks(t: Tables, named: Tables) -> Rows:
    """Return for each task of ``t`` the index of the matching one in ``named.tasks``, -1 where there is none."""
    found = np.full(len(t.tasks.row), -1, np.intp)
    kernel_of = {name: i for i, name in enumerate(named.trace.names)}
    mine = np.array([kernel_of.get(t.trace.names[n], -1) for n in _names(t).tolist()] or [-1], np.intp)
    kernels, others, listed = _kernels(t), _kernels(named), _names(t)
    known = {_key(others[step]): step for step in _by_step(named)}
    for step in _by_step(t):
        other = known.get(_key(mine[np.searchsorted(listed, kernels[step])]))
        if other is not None:
            found[step] = other
    return found


def _kernels(t: Tables) -> Rows:
    return t.trace.events.name[t.tasks.row].astype(np.intp)


def _names(t: Tables) -> Rows:
    return distinct(_kernels(t)) if len(t.tasks.row) else np.zeros(1, np.intp)


def _key(kernels: Rows) -> bytes:
    return kernels.astype(np.int64).tobytes()


def _by_step(t: Tables) -> list[Rows]:
    """Return the tasks of each step in the order of their launches; tasks without a launch belong to none."""
    launched = np.flatnonzero(t.tasks.launch >= 0)
    launched_at = t.trace.events.start[t.tasks.launch[launched]]
    order = np.lexsort((t.tasks.start[launched], launched_at))
    launched, launched_at = launched[order], launched_at[order]
    cuts = np.searchsorted(launched_at, t.steps.start)
    return [part for part in np.split(launched, cuts)[1:] if len(part)]
