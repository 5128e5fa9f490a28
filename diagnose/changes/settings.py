"""Settings of the whole process, made by one line at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import AddStatement, Change, Patch, Proposal, rounding
from diagnose.changes.patches import precision

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


STATEMENT = "torch.set_flush_denormal(True)"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    tensor = finding.facts.get("tensor", "tensor")
    return Proposal(
        after=f"{STATEMENT}   # before the first operator: threads that torch starts inherit it\n"
        f"# or at the source of the numbers, the {tensor}: 0 once it no longer counts\n"
        "mask = torch.where(mask < 1e-30, 0.0, mask)",
        least=0.3,  # of what operators take longer: a part may be due to their layout
        needs="an x86 CPU with SSE3, or an ARM CPU",
    )


CHANGES = (
    Change(
        id="cudnn-benchmark",
        page="""Select the fastest cuDNN algorithms by benchmark.

What it does
    Sets `torch.backends.cudnn.benchmark = True`. cuDNN then times its algorithms once per shape and keeps the fastest.

What to watch
    If shapes keep changing, each new one is timed again.
""",
        title="Select the fastest cuDNN algorithms by benchmark",
        numerics=rounding("other algorithms round differently; compare the loss of the first steps"),
        patch=Patch(precision.benchmark_convolutions, needs_gpu=True),
        edit=AddStatement(
            "torch.backends.cudnn.benchmark = True",
            ("cudnn.benchmark", "cudnn.deterministic", "deterministic_algorithms"),
        ),
    ),
    Change(
        id="flush-subnormals",
        page="""Flush subnormal numbers to zero on the CPU.

What it does
    `torch.set_flush_denormal(True)` makes the CPU treat numbers below 1.2e-38 as 0. Arithmetic with them is slow.

What to watch
    Call it before the first operator, and in each process that the script starts. A CPU without this mode returns
    `False`.
""",
        title="Flush subnormal numbers to zero on the CPU",
        numerics=rounding("numbers below 1.2e-38 become 0"),
        applies=lambda _, finding: finding.facts.get("kind", "subnormal") == "subnormal",
        proposal=_proposal,
        patch=Patch(precision.flush_subnormals),
        edit=AddStatement(STATEMENT, ("set_flush_denormal",)),
    ),
    Change(
        id="one-thread",
        page="""Let operators run on one thread.

What it does
    Sets `OMP_NUM_THREADS=1`. An operator ends when the last of its threads does, and with fewer cores than threads one
    of them waits for a core.

What to watch
    With free cores, large operators are slower on one thread. A script that calls `torch.set_num_threads` decides by
    itself.
""",
        title="Set OMP_NUM_THREADS=1",
        numerics=rounding("sums of several threads are added in another order"),
        patch=Patch(environment={"OMP_NUM_THREADS": "1"}),
        to_try=lambda work: work.waits_for_cores,
    ),
)
