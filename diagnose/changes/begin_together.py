"""Let all ranks enter the first step together.

What it does
    Moves what one rank does before its first step (loading a checkpoint, making the dataset's index, compiling, writing
    a log) to all ranks, or to where it does not delay the loop, and shows by one barrier what is left of it.

What to watch
    A late begin of the recording's first step only may be gone in the next: record later steps before anything is
    changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_LOOP = """# first: diagnose trace --skip 50 --steps 20 train.py
# a wait that does not come again was the start of the run
began = time.perf_counter()
torch.distributed.barrier()                    # once, before the steps
print(rank, time.perf_counter() - began)       # the rank that waits for nobody is the late one: what did it do before?
for batch in loader: ..."""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    late = finding.facts.get("begins_late_rank")
    if late is None:
        return None
    return Advice(
        title=f"Find what rank {late} does before its step, and do it on all ranks or outside the loop",
        before=f"if rank == {late}:\n    evaluate(model)   # or save, log, fetch data: all others wait meanwhile",
        after=_LOOP,
        least=0.0,
        most=float(str(finding.facts.get("begin_share", 1.0))),
        needs="a look at what lies before the recorded steps, which no recording of them shows",
    )


CHANGE = Change(
    id="begin-together",
    title="Find what the late rank does before its step, and do it on all ranks or outside the loop",
    numerics=identical(),
    patch=ByHand("what a rank does before its step is the script's own"),
    edit=ByHand("what a rank does before its step is the script's own"),
    advice=_advice,
    without_remedy="what a rank does before its step is the script's own",
)
