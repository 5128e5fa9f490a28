"""Other processes are on the same device.

What it looks for
    Processes that NVML lists on the device beside the script's own.

Why it costs
    They share its time in slices, its memory, and its links. Every number of this recording holds their part too.

What to do
    Give the job a device of its own, or measure again when the others have gone.

How sure
    High that they were there. What they cost is given only where queued work waited; see device-contention.
"""

from __future__ import annotations

from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.nvml_readings import other_processes

META = RuleMeta(
    id="shared-device",
    kind="state",
    order=40,
    needs=("NVML samples",),
)


def find(t: Tables) -> list[Finding]:
    """State who else was there; this by itself loses no time that could be measured."""
    others = other_processes(t)
    if not others:
        return []
    held = sum(other.memory_bytes or 0 for other in others)
    memory = f", with {held / 1e9:.1f} GB of its memory" if held else ""
    return [
        Finding(
            rule=META.id,
            title="Other processes use the same device",
            lost_ns=0.0,
            count=len(others),
            evidence=(f"Process {', '.join(str(other.pid) for other in others[:8])} was seen on it{memory}.",),
        )
    ]
