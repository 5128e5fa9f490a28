"""Evaluate less often, in larger batches, or in another process; compute less often what needs no gradients.

What it does
    Halves how often the model is evaluated, keeps no graph, and takes larger batches, which memory without gradients
    allows.

What to watch
    Early stopping and schedules that read the result react later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


PHASES = ("evaluation", "inference")


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts.get("phase") not in PHASES:
        return None
    place, period = own_place(finding), finding.facts.get("period")
    often = "step % (2 * every) == 0"
    if isinstance(period, int) and period > 1 and finding.facts.get("regular") is not False:  # seen more than once
        often = f"step % {2 * period} == 0"
    if finding.facts["phase"] == "inference":
        return Advice(
            title="Compute it less often, or make it cheaper",
            before=(place.code or "") if place else "",
            after=f"if {often}:   # half as often: half of the cost\n"
            "    ...\n"
            "# or cheaper: fewer samples or steps of it; what stays the same from one pass to the next is kept",
            least=0.5,
            most=0.9,
            needs="no decision of each of these steps that rests on the result",
        )
    size = f"batch_size={4 * program.batch_size}" if program.batch_size else "a larger batch_size"
    return Advice(
        before=(place.code or "") if place else "",
        after=f"if {often}:                  # half as often: half of the cost\n"
        "    with torch.inference_mode():          # keeps no graph\n"
        f"        evaluate(model, validation_loader)   # its DataLoader: {size}, workers that persist\n"
        "# or beside the training: save a checkpoint and start a process that evaluates it",
        least=0.5,
        most=0.9,
        needs="no decision of each of these steps that rests on the result",
    )


CHANGE = Change(
    id="evaluate-less",
    title="Evaluate less often and in larger batches, or in another process",
    numerics=identical("of training; results come less often"),
    patch=ByHand("how often is evaluated is the user's to decide"),
    edit=ByHand("how often is evaluated is the user's to decide"),
    advice=_advice,
    without_remedy="how often a script evaluates is its own",
)
