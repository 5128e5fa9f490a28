"""Other processes are on the same GPU.

What it looks for
    Processes on the GPU, listed by NVML, that are not part of the script.

Why it costs
    They use its time, memory and links. All times of this recording include their effect.

What to do
    Use a GPU without other processes, or measure again later.

How sure
    High that they were there. See `device-contention` for their cost. Needs `diagnose trace`.
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
