"""What a trace shows of the optimizer's step. Shared by device and host rules."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.diagnosis import Facts
from diagnose.model.events import Kind
from diagnose.model.intervals import among, contains
from diagnose.model.records import as_facts
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, LAUNCH, OPTIMIZER_STEP

__all__ = ["is_loop", "optimizer_facts"]

MIN_LAUNCHES = 50  # a foreach optimizer makes about 10 to 30, a fused one 1 to 4 for each group of tensors
MIN_INSIDE = 0.5  # of the backward passes' operators
_MULTI_TENSOR = r"multi_tensor|multi_tensor_apply|foreach|[Ff]used"
_NAME = r"Optimizer\.step#(?P<name>\w+)"


def optimizer_facts(t: Tables) -> Facts:
    """Return the optimizer's class and how many launches (without a device: operators) a call of its step makes."""
    rows = t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)
    events = t.trace.events
    first = re.search(_NAME, t.name(int(rows[0]))) if len(rows) else None
    steps = t.updates
    launches = t.calls(LAUNCH) if t.device_id >= 0 else t.host_rows(Kind.OP)
    launches = launches[contains(steps, events.start[launches])]
    mine = t.tasks.row[among(t.tasks.launch, launches)] if t.device_id >= 0 else launches
    times = np.bincount(events.name[mine])
    multi = sum(int(times[n]) for n in np.flatnonzero(times).tolist() if re.search(_MULTI_TENSOR, t.trace.names[n]))
    calls = max(1, len(rows))
    known = as_facts(t.capture.info.optimizer) if t.capture.info else {}
    return {
        **known,
        "name": first["name"] if first else "the optimizer",
        "calls": len(rows),
        "launches": len(launches) / calls,
        "multi_tensor": multi / calls,
        "has_device": t.device_id >= 0,
        "calls_model": _holds_backward(t),
    }


def _holds_backward(t: Tables) -> bool:
    """Return whether the optimizer's step calls a closure, as that of LBFGS does: most of its time is the model's."""
    steps, rows = t.updates, t.calls(BACKWARD, Kind.OP)
    start = t.trace.events.start[rows]
    return bool(len(rows) and contains(steps, start).mean() > MIN_INSIDE)


def is_loop(t: Tables) -> bool:
    """Return whether the optimizer's step launches kernels tensor by tensor."""
    facts = optimizer_facts(t)
    if facts["calls_model"]:
        return False
    launches, multi = facts["launches"], facts["multi_tensor"]
    assert isinstance(launches, float), "a mean"
    assert isinstance(multi, float), "a mean"
    few = 0.5 * launches if t.device_id >= 0 else 1.0
    return launches >= MIN_LAUNCHES and multi < few
