"""Read a value a step later instead of waiting for it.

What it does
    Replaces `loss.item()` by `metrics.push(step, loss=loss.detach())`. The value is copied without waiting, and read
    one step later.

What to watch
    If a decision in the same step depends on the value, the wait must stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_values_read
from diagnose.changes.common.change import Change, EditLoop, Proposal, identical
from diagnose.model.locations import at_line, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    place = own_place(finding.where)
    name, line = (
        ("score", "value = score.item()") if program.trains is False else ("loss", "running_loss += loss.item()")
    )
    before = place.code if place and place.code else line
    at = f"   # {at_line(place)}" if place else ""
    return Proposal(
        title=f"Stop waiting for the device in the loop{f' ({at_line(place)})' if place else ''}",
        before=before + at,
        after="from diagnose.kernels.deferred_metrics import DeferredMetrics\n\n"
        "metrics = DeferredMetrics()\n"
        f"metrics.push(step, {name}={name}.detach())      # queues a copy, waits for nothing\n"
        "for past_step, values in metrics.ready():   # one step later\n    ...",
        least=0.2,
        needs="no decision in the same step that depends on the value",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of values that are not waited for, and at most not read at all."""
    from functools import partial

    import numpy as np

    from diagnose.replay.effects import Effect
    from diagnose.replay.graph import Graph
    from diagnose.replay.transforms import drop_waits, scale_host, shorten_calls, syncs_before
    from diagnose.tables.syncs import operators_around

    calls = syncs_before(t, t.causes.pieces(finding.rule))
    if not len(calls):
        return None
    reading = operators_around(t, calls)

    def unread(graph: Graph) -> Graph:
        dropped = drop_waits(graph, calls)
        shorter = shorten_calls(dropped, calls, np.ones(len(calls)))
        return scale_host(shorter, reading, 0.0)

    return Effect(
        partial(drop_waits, calls=calls),
        unread,
        t.steps.step_ns,
        "Nothing else needs the value at once; at most it is not read in the recorded steps at all.",
    )


CHANGE = Change(
    id="defer-sync",
    title="Stop waiting for the device in the loop",
    numerics=identical(", one step later"),
    edit=EditLoop("with_kept_values", "lines", ()),
    proposal=_proposal,
    applies=to_values_read,
    effect=_effect,
    remedy="diagnose.kernels.deferred_metrics",
)
