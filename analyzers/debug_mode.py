"""A setting for debugging is on.

What it looks for
    NaN checks of anomaly detection in the backward pass, or `CUDA_LAUNCH_BLOCKING` in the environment.

Why it costs
    Anomaly detection records a Python stack per operator and waits after each backward function. Steps take 2–7 times
    as long. With `CUDA_LAUNCH_BLOCKING=1`, each launch waits for its kernel.

What to do
    Remove `torch.autograd.set_detect_anomaly(True)`, or unset the variable. Then record again before other changes.

How sure
    High that the setting is on. Its cost is an estimate.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.locate import place_of_call
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect, subtract, total, union
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import recorded_stacks
from diagnose.tables.host_gaps import without_operators
from diagnose.text.numbers import duration, plural

META = RuleMeta(
    id="debug-mode",
    kind="idle",
    order=95,  # before the waits, which the checks are full of
    host_order=25,
    legend=Legend("a setting for finding bugs slowed the host down"),
    changes=("no-debug-checks",),
    inflated=True,
    cause="host-work",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's part of what is left, but for long intervals outside operators and interruptions within."""
    if not len(t.anomaly_checks) and not _blocks_launches(t):
        return EMPTY
    return subtract(intersect(left, t.gaps.host_part()), without_operators(t))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the checks themselves, and what recording stacks takes."""
    return intersect(left, union(t.covering(t.anomaly_checks), recorded_stacks(t)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time under the setting: under that which costs more, if both are on."""
    rows = t.anomaly_checks
    made = t.capture.known.flags.anomaly if len(rows) else None
    facts = {"blocks_launches": _blocks_launches(t), "made": as_facts(made) if made is not None else None}
    if len(rows):
        title = "Anomaly detection is on: each operator records its stack, and each gradient is checked for NaN"
        num = sum(t.name(row) == "aten::item" for row in rows.tolist()) / t.steps.num
        spent_ms, stacks = total(t.covering(rows)) / t.steps.num / 1e6, total(recorded_stacks(t)) / t.steps.num
        texts = [f"{plural(num, 'check')} a step, each read back by the host: {spent_ms:,.1f} ms of the step."]
        if stacks:
            texts.append(f"Recording the stacks of operators takes {duration(stacks)} of the step.")
    else:
        title = "CUDA_LAUNCH_BLOCKING is set: each launch waits for its kernel"
        texts = ["CUDA_LAUNCH_BLOCKING was set in the environment of the recorded process."]
    found = idle_finding(t, IdleRule(META.id, title, evidence=texts, facts=facts))
    return [replace(each, where=(*place_of_call(made), *each.where)) for each in found]


def _blocks_launches(t: Tables) -> bool:
    return t.capture.known.flags.cuda_launch_blocking is True
