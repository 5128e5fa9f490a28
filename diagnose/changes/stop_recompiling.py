"""Let one compiled graph serve all sizes.

What it does
    `torch.compile(model, dynamic=True)` or `torch._dynamo.mark_dynamic(batch, 0)` lets one graph serve all sizes.

What to watch
    Kernels for all sizes can be slower. If they are, pad to a few sizes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Change, Patch, Proposal, SetArguments, rounding
from diagnose.changes.patches import compiling
from diagnose.text.numbers import growth

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# Share of their time that kernels for all sizes add at most. With torch 2.13 on a CPU products and attention took 5 %
# less to 20 % more, a normalization by itself 43 % more.
SLOWER = 0.2


def _proposal(finding: Finding, step_ns: float, program: Program) -> Proposal:
    rest_ns = max(step_ns - finding.lost_ns, 0.0)
    return Proposal(
        before="model = torch.compile(model)",
        after=f'# TORCH_LOGS="recompiles" python {script_of(program)}   prints which guard fails\n'
        "model = torch.compile(model, dynamic=True)\n"
        "# or name the dimension that changes:\n"
        "torch._dynamo.mark_dynamic(batch, 0)",
        least=max(0.0, 1 - SLOWER * rest_ns / max(finding.lost_ns, 1.0)),
        needs="sizes that differ in known dimensions",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    from dataclasses import replace

    import numpy as np

    from diagnose.model.intervals import among
    from diagnose.replay.effects import Effect, limit_of
    from diagnose.replay.graph import Graph
    from diagnose.replay.transforms import remove_cause

    whole = remove_cause(t, finding, "compilation", 1.0)
    if whole is None:
        return None
    computing = t.tasks.row[~(t.tasks.is_collective | t.tasks.is_copy)]

    def slower(graph: Graph) -> Graph:
        after = whole(graph)
        longer = np.where(graph.is_task & among(graph.row, computing), 1 + SLOWER, 1.0)
        return replace(after, duration=after.duration * longer)

    assumption = f"Nothing is compiled in these steps, and kernels for all sizes take up to {growth(SLOWER, 0)} longer."
    return Effect(slower, whole, limit_of(t, finding, frees_host=True), assumption)


CHANGE = Change(
    id="stop-recompiling",
    title="Mark the changing dimension dynamic so that one graph serves all sizes",
    numerics=rounding("other kernels are generated; compare the loss of the first steps"),
    applies=lambda _, finding: finding.facts.get("kind", "size") == "size",
    patch=Patch(compiling.stop_recompiling, compiles=True, group="compile"),
    edit=SetArguments(("torch.compile",), {"dynamic": True}),
    proposal=_proposal,
    effect=_effect,
    remedy="diagnose.kernels.compiling",
)
