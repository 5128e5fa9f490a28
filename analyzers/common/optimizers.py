"""What a trace shows of the optimizer's step, and the change that follows. Shared by device and host rules."""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.idle_findings import prescription
from diagnose.model.diagnosis import Facts, Finding, Prescription
from diagnose.model.events import Kind
from diagnose.model.intervals import covered
from diagnose.model.records import as_facts
from diagnose.tables import Tables
from diagnose.tables.names import LAUNCH, OPTIMIZER_STEP
from diagnose.tables.optimizer_spans import updates

__all__ = ["is_loop", "optimizer_facts", "optimizer_prescriptions"]

MIN_LAUNCHES = 50  # a foreach optimizer makes about 10 to 30, a fused one 1 to 4 for each group of tensors
_MULTI_TENSOR = re.compile(r"multi_tensor|multi_tensor_apply|foreach|[Ff]used")
_NAME = re.compile(r"Optimizer\.step#(?P<name>\w+)")
# Optimizers with a fused implementation; the others have foreach.
FUSED = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
# Of the loop's cost, what another implementation takes away, at least and at most. On a CPU the operators do the
# arithmetic themselves, and that stays: foreach spares only dispatch, fused the passes over memory too.
SPARED = {"fused": (0.5, 1.0), "foreach": (0.5, 1.0)}
SPARED_ON_CPU = {"fused": (0.4, 0.75), "foreach": (0.0, 0.3)}


def optimizer_facts(t: Tables) -> Facts:
    """Return the optimizer's class and how many launches (without a device: operators) a call of its step makes."""
    return t.cached("optimizer_facts", lambda: _look(t))


def _look(t: Tables) -> Facts:
    rows = t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)
    events = t.trace.events
    first = _NAME.search(t.name(int(rows[0]))) if len(rows) else None
    steps = updates(t)
    launches = t.calls(LAUNCH) if t.device_id >= 0 else t.host_rows(Kind.OP)
    launches = launches[covered(steps, events.start[launches], events.start[launches] + 1) > 0]
    mine = t.tasks.row[np.isin(t.tasks.launch, launches)] if t.device_id >= 0 else launches
    multi = sum(1 for row in mine.tolist() if _MULTI_TENSOR.search(t.name(row)))
    calls = max(1, len(rows))
    known = as_facts(t.capture.info.optimizer) if t.capture.info else {}
    return {
        **known,
        "name": first["name"] if first else "the optimizer",
        "calls": len(rows),
        "launches": len(launches) / calls,
        "multi_tensor": multi / calls,
        "has_device": t.device_id >= 0,
    }


def is_loop(t: Tables) -> bool:
    """Tell whether the optimizer's step launches kernels tensor by tensor."""
    facts = optimizer_facts(t)
    launches, multi = facts["launches"], facts["multi_tensor"]
    assert isinstance(launches, float), "a mean"
    assert isinstance(multi, float), "a mean"
    few = 0.5 * launches if t.device_id >= 0 else 1.0
    return launches >= MIN_LAUNCHES and multi < few


def optimizer_prescriptions(finding: Finding, step_ns: float) -> list[Prescription]:
    """Prescribe the fused implementation, or foreach where the class has none."""
    name = str(finding.facts.get("name", "AdamW"))
    flag = "fused" if name in FUSED else "foreach"
    least, most = (SPARED if finding.facts.get("has_device") else SPARED_ON_CPU)[flag]
    return [
        prescription(
            finding,
            step_ns,
            id=f"{flag}-optimizer",
            title=f"Use the {flag} implementation of {name}",
            before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
            after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, {flag}=True)",
            least=least,
            most=most,
            safety="may change the numbers: the order of roundings differs; the same to about 1e-6 after a step",
            needs="floating-point parameters on one device type",
            remedy="diagnose.kernels.optimizers",
        )
    ]
