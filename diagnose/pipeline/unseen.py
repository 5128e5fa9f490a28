"""What the recording does not hold: which rules could not look, and whether that may hide an answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from diagnose import analyzers
from diagnose.answer.ranking import FLOOR, HOST_FLOOR
from diagnose.model.events import Kind
from diagnose.model.records import as_facts
from diagnose.model.rules import OF_PAUSES, OF_WORK, OUTSIDE, WORK, Records, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import can_recur
from diagnose.tables.roofline import gpu_spec

__all__ = ["has_shapes", "missing_records", "not_looked", "unseen"]


def missing_records(t: Tables, *, alone: bool = True) -> frozenset[Records]:
    """Return what the recording does not hold, and rules would need; ``alone``: no other rank's trace is at hand."""
    info, samples = t.capture.info, t.capture.samples
    traces = [trace for trace in (t.trace, t.capture.attribution) if trace is not None]
    held: dict[Records, bool] = {
        "shapes": has_shapes(t),
        "peak rates of the device": gpu_spec(t) is not None,
        "data flow": t.capture.dataflow is not None,
        "stacks": any(bool((trace.events.kind == Kind.PYTHON).any()) for trace in traces),
        "garbage collections": samples is not None or bool((t.trace.events.kind == Kind.GC).any()),
        "memory events": bool((t.trace.events.kind == Kind.MEMORY).any()),
        "NVML samples": info is not None and bool(as_facts(info.nvml)),
        "samples of the threads": samples is not None,
        "steps of the whole run": t.capture.run is not None,
        "a second step": can_recur(t),
        "all ranks": t.trace.world_size <= 1 or not alone,
    }
    return frozenset(name for name, there in held.items() if not there)


def has_shapes(t: Tables) -> bool:
    """Return whether the inputs' shapes of operators were recorded, in either window."""
    traces = [trace for trace in (t.trace, t.capture.attribution) if trace is not None]
    return any(bool((trace.events.shapes >= 0).any()) for trace in traces)


def not_looked(
    rules: Iterable[RuleMeta], missing: Collection[Records], *, lacks_device: bool
) -> dict[str, tuple[Records, ...]]:
    """Return the rules that lack something, and what; ``lacks_device``: the device ran, and its records are missing."""
    found = {rule.id: tuple(record for record in rule.needs if record in missing) for rule in rules}
    if lacks_device:
        of_device = (m for m in analyzers.META.values() if m.kind in ("idle", "kernel", "state") and m.id not in found)
        found |= {rule.id: ("device records",) for rule in of_device}
    return {rule: lacking for rule, lacking in found.items() if lacking}


def unseen(
    t: Tables, left_out: Mapping[str, tuple[Records, ...]], shares: Mapping[str, float], computing: float
) -> dict[str, int]:
    """Return the records without which an answer may be hidden, with the number of rules that need each.

    Records that show superfluous work hide no more than what computes, those that show pauses no more than the time
    between operators that no rule explains.

    Args:
        t: the recorded steps.
        left_out: the rules that lack something, and what.
        shares: of the step, by cause.
        computing: share of the step in which the device computes, or without a device the host's operators.
    """
    floor = FLOOR if t.device_id >= 0 else HOST_FLOOR
    unknown = sum(share for name, share in shares.items() if name == OUTSIDE or _is_unknown(name))
    found: dict[str, int] = {}
    if of_device := sum("device records" in lacking for lacking in left_out.values()):
        found["device records"] = of_device
    for rule, lacking in left_out.items():
        meta = analyzers.META[rule]
        if meta.kind not in ("idle", "kernel", "run") or not (meta.is_avoidable and meta.explains):
            continue
        for record in lacking:
            room = computing if record in OF_WORK else unknown if record in OF_PAUSES else 0.0
            if room >= floor:
                found[record] = found.get(record, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _is_unknown(name: str) -> bool:
    return name != WORK and name in analyzers.META and not analyzers.META[name].explains
