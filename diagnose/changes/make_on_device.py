"""Make on the device what is copied to it.

What it does
    Adds `device=` to the call that makes a tensor: `torch.eye(n).to(device)` becomes `torch.eye(n, device=device)`.
    Tensors that never change are made once, before the loop.

What to watch
    Random numbers of the device differ, so a trial leaves random tensors on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Proposal, rounding
from diagnose.model.locations import at_line, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.replay.graph import Graph
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

LEFT = 0.1  # of the host's work for it, at most saved: launching the same operators on the device


def _applies(program: Program, finding: Finding) -> bool:
    to_device = finding.facts.get("to_host") != finding.facts.get("num")
    return to_device and program.has_loader is False and not finding.facts.get("issuer")


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    place = own_place(finding.where)
    at = f" ({at_line(place)})" if place else ""
    return Proposal(
        title=f"Make what is copied on the device, or once before the loop{at}",
        least=0.5,
        most=1.0,
        needs="a tensor that operators make, or that does not change",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of no copies from the host; at most also without the host's work that the device waits for."""
    from diagnose.analyzers import host_compute
    from diagnose.replay.effects import Effect
    from diagnose.replay.transforms import remove_cause, scale_host

    least = remove_cause(t, finding, "copy", 0.5)
    copies = remove_cause(t, finding, "copy", 1.0)
    if least is None or copies is None:
        return None
    pieces = t.causes.pieces(finding.rule, host_compute.META.id)

    def most(graph: Graph) -> Graph:
        return scale_host(copies(graph), pieces, LEFT)

    return Effect(
        least,
        most,
        t.steps.step_ns,
        "Between half of the copies, and all of them with nine tenths of what the host computes before them.",
    )


CHANGE = Change(
    id="make-on-device",
    title="Make what is copied on the device, or once before the loop",
    numerics=rounding("kernels of the device round differently; compare the loss of the first steps"),
    proposal=_proposal,
    applies=_applies,
    effect=_effect,
    edit=EditLoop("with_device_argument", "lines", ()),
)
