"""Look into the kernel with Nsight Compute.

What it does
    Runs the script under `ncu` for one launch of the kernel in question, with the sections that show what limits it.

What to watch
    Each section replays the kernel: the run takes long, and counters may need the administrator's permission.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


MAX_NAME = 60  # characters of a kernel's name that tell it from others
SKIPPED = 20  # launches, beyond the warm-up of its first


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    kernel = finding.facts.get("kernel")
    if not isinstance(kernel, str) or not kernel or program.vendor == "AMD":
        return None
    return Advice(
        after=f"ncu --kernel-name regex:'{_pattern(kernel)}' --launch-skip {SKIPPED} --launch-count 1 \\\n"
        "    --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \\\n"
        "    --section WarpStateStats --section SourceCounters -o kernel \\\n"
        f"    python {script_of(program)}\n"
        "# SpeedOfLight: whether memory or arithmetic is near its limit; WarpStateStats: what warps wait for;\n"
        "# Occupancy: whether registers or shared memory keep blocks out",
        most=0.0,
        needs="Nsight Compute, and permission to read performance counters",
    )


def _pattern(kernel: str) -> str:
    """Return the kernel's name without its arguments, as ncu matches it."""
    bare = re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0].rpartition("::")[2] or kernel
    return re.sub(r"[^\w]+", ".*", bare)[:MAX_NAME]


CHANGE = Change(
    id="profile-kernel",
    title="Look into the kernel with Nsight Compute",
    numerics=identical(),
    patch=ByHand("it shows what limits the kernel, and changes nothing"),
    edit=ByHand("it shows what limits the kernel, and changes nothing"),
    advice=_advice,
    without_remedy="a command",
)
