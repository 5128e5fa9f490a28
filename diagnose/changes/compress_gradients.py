"""Send gradients in 16 bits.

What it does
    `install(ddp, "bf16")` adds a DDP hook that sends gradients as bfloat16. This halves the bytes, not the latency.

What to watch
    The casts take time, so you gain less than half of the transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, reduced
from diagnose.changes.common.gradients import ddp_arguments, ddp_call, has_free_core, is_a_reduction, to_large_gradients
from diagnose.changes.patches import distributed
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# Of the bytes that 16 bits spare, what is gained: the cast of the gradients and back takes some of it.
HALVED = (0.25, 0.5)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not is_a_reduction(finding) or not has_free_core(finding.facts):
        return None
    call = ddp_call(ddp_arguments(finding), has_device=bool(finding.facts.get("has_device")))
    return Proposal(
        before=call,
        after="from diagnose.kernels.distributed.comm_hooks import install\n\n"
        f'{call}\ninstall(model, "bf16")   # before the first backward',
        least=0.2,
        most=0.5,
        needs="DistributedDataParallel; half of the bytes are saved, the latency is not",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    import numpy as np

    from diagnose.perf_model.gpu_specs import LATENCY_NS
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.replay.transforms import transfer_share

    tasks = np.flatnonzero(t.tasks.is_collective)
    carried = np.maximum((t.tasks.end - t.tasks.start)[tasks].astype(np.float64) - LATENCY_NS, 0.0)
    carried *= transfer_share(finding)
    if not carried.sum():
        return None
    assumption = (
        f"Each collective takes {percent(HALVED[0], 0)} to {percent(HALVED[1], 0)} less, but for "
        f"{LATENCY_NS // 1000} µs of latency."
    )
    return effect_of_tasks(t, finding, tasks, (carried * HALVED[0], carried * HALVED[1]), assumption)


CHANGE = Change(
    id="compress-gradients",
    title="Send gradients in 16 bits",
    numerics=reduced("16-bit gradients round; compare the loss of the first hundred steps"),
    patch=Patch(distributed.compress_gradients, group="hook"),
    proposal=_proposal,
    applies=to_large_gradients,
    effect=_effect,
    remedy="diagnose.kernels.distributed.comm_hooks",
)
