"""Run on a device that no other process uses.

What it does
    Lists what runs on each device, and starts the script on a free one.

What to watch
    A device that is shared with a display or another user's job shows up again when that one is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    if program.vendor == "AMD":
        listed, variable = "rocm-smi --showpids", "HIP_VISIBLE_DEVICES"
    else:
        listed = "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv"
        variable = "CUDA_VISIBLE_DEVICES"
    script = script_of(program)
    return Advice(
        before=f"python {script}", after=f"{listed}\n{variable}=1 python {script}   # one that no other process uses"
    )


CHANGE = Change(
    id="own-device",
    title="Run on a device that no other process uses",
    numerics=identical(),
    patch=ByHand("another process holds the device"),
    edit=ByHand("it is a matter of how the script is started"),
    advice=_advice,
    without_remedy="a command of the machine",
)
