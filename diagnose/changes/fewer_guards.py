"""Let a compiled function check less before it launches its graph.

What it does
    Leaves out guards on what does not change, and makes one compiled function of several: the look-up of guards, the
    handling of arguments and the checks of CUDA graph trees then come once a step, or the whole step is one graph that
    nothing is checked for.

What to watch
    A guard that is left out no longer notices what it was for: a module's attribute that changes later is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_GUARD_SHARE = 0.3  # of the finding: where less of it comes before graphs, other launches are what to look at
MAX_SAVED_SHARE = 0.7  # of that time: arguments are handled and the graph is looked up in any case


def _share(finding: Finding) -> float:
    share = finding.facts.get("before_graphs")
    return float(share) if isinstance(share, float) else 0.0


def _applies(program: Program, finding: Finding) -> str:
    if program.server:
        return f"{program.server} compiles the model by its own options"
    return (
        ""
        if _share(finding) >= MIN_GUARD_SHARE
        else "little of the time passes in a compiled function before its graph"
    )


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    return Advice(
        before='model = torch.compile(model, mode="reduce-overhead")',
        after="skip = torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe\n"
        'options = {"triton.cudagraphs": True, "guard_filter_fn": skip}   # as mode="reduce-overhead" has it\n'
        "model = torch.compile(model, fullgraph=True, options=options)\n"
        "# several compiled calls a step: compile the function that makes them, as one\n"
        "# or capture the step itself, which nothing is checked for: diagnose.kernels.step_graph",
        least=0.0,
        most=MAX_SAVED_SHARE * _share(finding),
        needs="torch 2.8 or later; modules that do not change after the first call",
    )


CHANGE = Change(
    id="fewer-guards",
    title="Reduce the guards that run before each compiled graph",
    numerics=identical("where nothing changes that a guard was for"),
    patch=ByHand("which guards can be left out only the script's author knows"),
    edit=ByHand("which guards can be left out only the script's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="an option of torch",
)
