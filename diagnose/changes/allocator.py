"""How the caching allocator keeps and grows its memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import empties_cache, script_of
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.patches import memory
from diagnose.model.locations import at_line

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


_GIVES_BACK = r"Free|Unmap|Release|Unregister"


def without_regrowth(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of a cache that takes nothing again that was given back; None for other findings.

    Calls that take more than was given back stay at least, since memory still grows there. Their share is that of the
    recorded calls.
    """
    import numpy as np

    from diagnose.analyzers import META
    from diagnose.replay.effects import effect_of_share
    from diagnose.tables.calls import allocations

    if META[finding.rule].cause != "allocation":
        return None
    calls = t.in_window(allocations(t))
    length = (t.trace.events.end - t.trace.events.start)[calls]
    gives = np.array([re.search(_GIVES_BACK, t.name(call)) is not None for call in calls.tolist()], bool)
    num_taken, num_given = int((~gives).sum()), int(gives.sum())
    growing = max(num_taken - num_given, 0) / max(num_taken, 1)
    least = 1 - growing * float(length[~gives].sum()) / max(float(length.sum()), 1.0)
    return effect_of_share(t, finding, "allocation", (least, 1.0))


def _cache_device_memory_proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    return Proposal(
        before=f"PYTORCH_NO_CUDA_MEMORY_CACHING=1 python {script_of(program)}",
        after=f"env -u PYTORCH_NO_CUDA_MEMORY_CACHING -u PYTORCH_NO_HIP_MEMORY_CACHING python {script_of(program)}",
        least=0.5,
    )


def _keep_cached_memory_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    place = empties_cache(finding)
    if place is None:
        return None
    return Proposal(
        title=f"Remove the call of empty_cache from the loop ({at_line(place)})",
        before=place.code or "",
        after="# nothing: blocks that are free are used again by the next step",
        least=0.7,
        needs="no other process that waits for this one's unused memory",
    )


def _expandable_segments_proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    script = script_of(program)
    return Proposal(
        before=f"python {script}            # and torch.cuda.empty_cache() in the loop: remove it",
        after=f"PYTORCH_ALLOC_CONF=expandable_segments:True python {script}\n"
        "# torch before 2.9: PYTORCH_CUDA_ALLOC_CONF",
        needs="Linux and a driver with virtual memory management",
    )


def _has_segments(program: Program, finding: Finding) -> bool:
    has_segments = program.vendor != "AMD" and program.allocator not in ("uncached", "async")
    return has_segments and empties_cache(finding) is None


OPTION = "roundup_power2_divisions:8"


def _round_allocations_proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    script = script_of(program)
    return Proposal(
        before=f"python {script}            # and torch.cuda.empty_cache() in the loop: remove it",
        after=f"PYTORCH_ALLOC_CONF={OPTION} python {script}\n"
        "# torch before 2.9: PYTORCH_HIP_ALLOC_CONF, on NVIDIA devices PYTORCH_CUDA_ALLOC_CONF",
        needs="memory for blocks that are up to an eighth larger",
    )


def _has_sizes(program: Program, finding: Finding) -> bool:
    fits = program.vendor == "AMD" and program.allocator not in ("uncached", "async")
    return fits and empties_cache(finding) is None


CHANGES = (
    Change(
        id="cache-device-memory",
        page="""Switch the caching allocator on again.

What it does
    Removes `PYTORCH_NO_CUDA_MEMORY_CACHING` from the environment. Freed memory is then reused without a driver call.

What to watch
    Set the variable only while you debug memory errors.
""",
        title="Keep freed memory in the caching allocator",
        numerics=identical(),
        patch=Patch(
            environment=dict.fromkeys(("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")),
            needs_gpu=True,
        ),
        proposal=_cache_device_memory_proposal,
        applies=lambda program, _: program.allocator == "uncached",
        effect=without_regrowth,
    ),
    Change(
        id="keep-cached-memory",
        page="""Keep the allocator's cached memory from step to step.

What it does
    Removes `torch.cuda.empty_cache()` from the loop. The call waits for the device, and the next step must allocate
    everything again.

What to watch
    Other processes get the unused memory only after this one ends. One call between training and evaluation is cheap.
""",
        title="Keep the allocator's cached memory from step to step",
        numerics=identical(),
        patch=Patch(memory.keep_cached_memory, needs_gpu=True),
        proposal=_keep_cached_memory_proposal,
        applies=lambda _, finding: empties_cache(finding) is not None,
    ),
    Change(
        id="expandable-segments",
        page="""Let the allocator's segments grow in place.

What it does
    Sets `PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF`). A block that does
    not fit then needs no `cudaFree` first.

What to watch
    It needs Linux and a driver with virtual memory management. Remove `torch.cuda.empty_cache()` from the loop, because
    it undoes the gain.
""",
        title="Use expandable segments of the allocator instead of freeing and allocating them again",
        numerics=identical(),
        patch=Patch(
            environment=dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"),
            needs_gpu=True,
        ),
        proposal=_expandable_segments_proposal,
        applies=_has_segments,
        effect=without_regrowth,
        remedy="diagnose.kernels.allocator",
    ),
    Change(
        id="round-allocations",
        page="""Round the sizes of allocations up.

What it does
    Sets `PYTORCH_ALLOC_CONF=roundup_power2_divisions:8`. Similar sizes then share blocks, so a freed one fits the next
    request. Use it if the device has no expandable segments.

What to watch
    Each block takes up to an eighth more memory. Remove `torch.cuda.empty_cache()` from the loop, because it undoes the
    gain.
""",
        title="Round allocation sizes up, so that freed blocks fit again",
        numerics=identical(),
        patch=Patch(
            environment=dict.fromkeys(
                ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), OPTION
            ),
            needs_gpu=True,
        ),
        proposal=_round_allocations_proposal,
        applies=_has_sizes,
        effect=without_regrowth,
        remedy="diagnose.kernels.allocator",
    ),
)
