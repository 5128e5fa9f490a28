"""Copy the data to a local disk before the run.

What it does
    Reads samples from a disk of the machine instead of a file system over the network.

What to watch
    Room on the local disk, and a copy that is made again when the data change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if not finding.facts.get("waits"):
        return None
    script = script_of(program)
    return Advice(
        before=f"python {script} --data /net/data",
        after=f"rsync -a /net/data/ /local/data/\npython {script} --data /local/data",
        least=0.0,
        needs="data on a network file system, and room for them on a local disk",
    )


CHANGE = Change(
    id="stage-locally",
    title="Copy the data to a local disk before the run",
    numerics=identical(),
    patch=ByHand("where the data lie, and where there is room, only the script's author knows"),
    edit=ByHand("it is a command before the script's"),
    advice=_advice,
    without_remedy="a command",
)
