"""Turn anomaly detection and blocking launches off.

What it does
    Removes `torch.autograd.set_detect_anomaly(True)` and `CUDA_LAUNCH_BLOCKING=1`. Operators then record no stacks, and
    launches return at once.

What to watch
    A NaN is no longer reported at the operator that made it. Turn the check on while you look for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Change, Patch, Proposal, SetArguments, identical
from diagnose.changes.patches import memory
from diagnose.changes.patches.memory import LAUNCH_BLOCKING
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

LEFT = 0.1  # of the host's work in the idle time, at most saved: stacks of deep models take nine tenths of it


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    if finding.facts.get("blocks_launches"):
        return Proposal(
            before=f"{LAUNCH_BLOCKING}=1 python {script_of(program)}",
            after=f"unset {LAUNCH_BLOCKING}",
            title=f"Remove {LAUNCH_BLOCKING} from the environment",
            least=0.2,
            most=1 - LEFT,
            by_hand=True,
        )
    return Proposal(
        before="torch.autograd.set_detect_anomaly(True)",
        after="torch.autograd.set_detect_anomaly(False)   # the default: True only while looking for a NaN",
        title="Leave autograd's anomaly detection off",
        least=0.2,
        most=1 - LEFT,
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of no checks, and at most of host work without the recording of stacks."""
    import numpy as np

    from diagnose.model.intervals import overlaps
    from diagnose.replay.effects import Effect
    from diagnose.replay.graph import Graph
    from diagnose.replay.transforms import drop_waits, scale_host

    checks = t.covering(t.anomaly_checks)
    if not len(checks.start) or t.device_id < 0:
        return None
    calls = t.blocking_calls
    events = t.trace.events
    calls = calls[overlaps(checks, events.start[calls], events.end[calls])]
    pieces = t.causes.pieces(finding.rule)

    def unchecked(graph: Graph) -> Graph:
        return scale_host(drop_waits(graph, np.sort(calls, kind="stable")), checks, 0.0)

    def quick(graph: Graph) -> Graph:
        return scale_host(unchecked(graph), pieces, LEFT)

    return Effect(
        unchecked,
        quick,
        t.steps.step_ns,
        f"At least the checks go; at most all but {percent(LEFT, 0)} of the host's work in the idle time is recording "
        "stacks.",
    )


CHANGE = Change(
    id="no-debug-checks",
    title="Leave anomaly detection and blocking launches off",
    numerics=identical(),
    proposal=_proposal,
    effect=_effect,
    patch=Patch(memory.no_debug_checks),
    edit=SetArguments(("set_detect_anomaly",), {"mode": False}, parameters=("mode", "check_nan")),
)
