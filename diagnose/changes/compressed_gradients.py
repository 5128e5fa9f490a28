"""Send fewer bytes of gradients: hooks of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from diagnose.changes.common.change import Change, Patch, Proposal, reduced, rounding
from diagnose.changes.common.gradients import ddp_arguments, ddp_call, has_free_core, is_a_reduction, to_large_gradients
from diagnose.changes.common.memory import num_ranks
from diagnose.changes.patches import distributed
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

INSTALL = "from diagnose.kernels.distributed.comm_hooks import install\n"
# Of the bytes that 16 bits spare, what is gained: the cast of the gradients and back takes some of it.
HALVED = (0.25, 0.5)
Applies = Callable[["Program", "Finding"], bool]


def _to_16_bits(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not is_a_reduction(finding) or not has_free_core(finding.facts):
        return None
    call = ddp_call(ddp_arguments(finding), has_device=bool(finding.facts.get("has_device")))
    return Proposal(
        before=call,
        after=f'{INSTALL}\n{call}\ninstall(model, "bf16")   # before the first backward',
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


def _slow_link(
    code: str, *, most: float, min_share: float, needs: str = "DistributedDataParallel over a slow link"
) -> Callable[[Finding, float, Program], Proposal | None]:
    """Return the advice of a hook, for exchanges that cost at least a share of the step."""

    def proposal(finding: Finding, step_ns: float, _program: Program) -> Proposal | None:
        if not is_a_reduction(finding) or finding.lost_ns < min_share * step_ns:
            return None
        return Proposal(after=INSTALL + code, least=0.0, most=most, needs=needs)

    return proposal


def _late(options: str) -> Callable[[Finding, float, Program], Proposal | None]:
    """Return the advice of a hook that leaves most of the gradients for later steps; ``options`` are its arguments."""
    return _slow_link(
        f"\nhook = install(ddp, {options})   # before the first backward\n"
        'checkpoint = {"model": model.state_dict(), "hook": hook.state_dict()}   # on every rank: errors differ',
        most=0.8,
        min_share=0.25,
        needs="DistributedDataParallel over a slow link; memory for the errors, as large as the gradients",
    )


def _up_to_ranks(limit: int) -> Applies:
    """Return a test for a hook in which each rank receives the bytes of all others, which helps up to so many ranks."""
    return lambda program, finding: num_ranks(finding) <= limit and to_large_gradients(program, finding)


def _over_hosts(program: Program, finding: Finding) -> bool:
    devices = finding.facts.get("num_devices")
    has_hosts = isinstance(devices, int) and 1 < devices < num_ranks(finding)
    return has_hosts and to_large_gradients(program, finding)


def _hook(change: str, hook: str, title: str, **further: Any) -> Change:
    install = partial(distributed.hook, name=hook) if hook in distributed.HOOKS else distributed.hierarchical_exchange
    return Change(
        id=change,
        title=title,
        patch=Patch(install, group="hook"),
        remedy="diagnose.kernels.distributed.comm_hooks",
        **further,
    )


CHANGES = (
    _hook(
        "compress-gradients",
        "bf16",
        "Send gradients in 16 bits",
        numerics=reduced("16-bit gradients round; compare the loss of the first hundred steps"),
        proposal=_to_16_bits,
        applies=to_large_gradients,
        effect=_effect,
        page="""Send gradients in 16 bits.

What it does
    `install(ddp, "bf16")` adds a DDP hook that sends gradients as bfloat16. This halves the bytes, not the latency.

What to watch
    The casts take time, so you gain less than half of the transfer.
""",
    ),
    _hook(
        "eight-bit-gradients",
        "int8",
        "Send gradients in 8 bits",
        numerics=reduced("8-bit gradients round; compare the loss of the first thousand steps"),
        proposal=_slow_link(
            '\nhook = install(ddp, "int8")   # before the first backward; save hook.state_dict() on every rank',
            most=0.7,
            min_share=0.1,
        ),
        applies=_up_to_ranks(8),
        page="""Send gradients in 8 bits.

What it does
    `install(ddp, "int8")` adds a DDP hook that sends a quarter of the bytes. Rounding errors are added to the next
    step's gradients.

What to watch
    It costs about six passes over the gradients. Beyond eight ranks nothing is gained. Save `hook.state_dict()` on
    every rank.
""",
    ),
    _hook(
        "low-rank-gradients",
        "power_sgd",
        "Send gradients as products of thin matrices (PowerSGD)",
        numerics=reduced("gradients are approximated; compare the loss of the first thousand steps"),
        proposal=_slow_link(
            '\nhook = install(ddp, "power_sgd", rank=2, warm_up=1000)   # before the first backward\n'
            "# or measure which hook keeps the loss: try_hooks\n"
            "from diagnose.kernels.distributed.hook_trials import try_hooks",
            most=0.8,
            min_share=0.1,
            needs="DistributedDataParallel over a slow link; the hook's state_dict saved with the model's",
        ),
        applies=to_large_gradients,
        modules=("diagnose.kernels.distributed.hook_trials",),
        page="""Send gradients as products of thin matrices.

What it does
    `install(ddp, "power_sgd", rank=2, warm_up=1000)` sends each matrix of gradients as two thin ones. The error is
    added to the next step's gradients.

What to watch
    The loss curve changes. The errors need as much memory as the gradients. `try_hooks` measures which hook keeps the
    loss.
""",
    ),
    _hook(
        "one-bit-gradients",
        "one_bit",
        "Send the signs of gradients (one bit each, with error feedback)",
        numerics=reduced("signs replace gradients; compare the loss of the first thousand steps"),
        proposal=_late('"one_bit", warm_up=1000'),
        applies=_up_to_ranks(56),
        page="""Send the signs of gradients.

What it does
    `install(ddp, "one_bit", warm_up=1000)` sends one bit per gradient and one magnitude per 1,024. The error is added
    to the next step's gradients.

What to watch
    The loss curve changes. It costs about six passes over the gradients. Beyond 56 ranks nothing is gained.
""",
    ),
    _hook(
        "top-k-gradients",
        "top_k",
        "Send the largest gradients only (top-k with error feedback)",
        numerics=reduced("most gradients arrive steps later; compare the loss of the first thousand steps"),
        proposal=_late('"top_k", density=0.05, warm_up=1000'),
        applies=_up_to_ranks(20),
        page="""Send the largest gradients only.

What it does
    `install(ddp, "top_k", warm_up=1000)` sends the largest 5% of the gradients. The rest is added to the next step's.

What to watch
    The loss curve changes: batch norm, momentum and clipping see late gradients. Selecting costs about as much as a
    sort. Beyond 20 ranks nothing is gained.
""",
    ),
    _hook(
        "hierarchical-exchange",
        "hierarchical",
        "Reduce gradients inside each host before they cross between hosts",
        numerics=rounding("gradients are summed in another order; compare the loss of the first steps"),
        proposal=_slow_link(
            "from diagnose.kernels.distributed.mesh import two_levels\n\n"
            'install(ddp, "hierarchical", mesh=two_levels("cuda", by="links"))   # before the first backward',
            most=0.8,
            min_share=0.0,
            needs="several hosts with equally many ranks, and a slower link between them",
        ),
        applies=_over_hosts,
        modules=("diagnose.kernels.distributed.mesh",),
        page="""Reduce gradients inside each host first.

What it does
    `install(ddp, "hierarchical", mesh=two_levels("cuda", by="links"))` sums inside each host, then between hosts. Slow
    links carry only each rank's share. On one host, NVLink groups count as hosts.

What to watch
    Each host needs the same number of consecutive ranks. NCCL may already do this by itself.
""",
    ),
)
