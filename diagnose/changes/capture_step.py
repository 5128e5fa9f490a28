"""Capture the whole step as one CUDA graph.

What it does
    Records forward, backward and the optimizer's step once, and replays them as one launch, without compiling.

What to watch
    Inputs of one shape, and no value that the host reads within the step. Where a step cannot be captured the module
    runs it as it is and names the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import graphable, to_launches_without_graphs
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> str:
    if finding.facts.get("has_device") is False:
        return "only a GPU replays graphs"
    if program.server:
        return f"{program.server} captures graphs by its own options"
    if program.varying_sizes:
        return "sizes differ from step to step, and a graph holds one of each"
    return to_launches_without_graphs(program, finding)


def whole_step(finding: Finding, program: Program) -> Advice:
    """Return how a step is captured as one graph."""
    if program.trains is False:
        call, optimizers, step = "step(x)", "", "def whole_step(x):\n    with torch.no_grad():\n        return model(x)"
    else:
        call, optimizers = "loss = step(x, y)", ", optimizers=[optimizer]"
        step = (
            "def whole_step(x, y):\n    optimizer.zero_grad(set_to_none=True)\n    loss = criterion(model(x), y)\n"
            "    loss.backward()\n    optimizer.step()   # made with capturable=True\n    return loss.detach()"
        )
    return Advice(
        after=f"from diagnose.kernels.step_graph import StepGraph\n\n{step}\n\n"
        f'step = StepGraph(whole_step, "cuda"{optimizers})\n{call}',
        least=0.3 * graphable(finding),
        most=0.95 * graphable(finding),
        needs="inputs of one shape, no value read within the step, and memory for the graph",
    )


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    return whole_step(finding, program)


CHANGE = Change(
    id="capture-step",
    title="Capture the whole step as one CUDA graph, without compiling",
    numerics=identical("where nothing in the step depends on a value that the host reads"),
    patch=ByHand("the step has to be a function of its inputs, which only the script's author can make of it"),
    edit=ByHand("which lines are one step only the script's author knows"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.step_graph",
)
