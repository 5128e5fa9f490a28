"""Load in the training process, without workers.

What it does
    Sets `num_workers=0`. It helps if samples are so cheap that pickling and sending a batch costs more than making it.

What to watch
    If samples wait for a disk or a network, each step waits too. A trial shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Numerics, Patch, Proposal, identical
from diagnose.changes.common.loading import IN_PROCESS, is_iterable, loader_call, with_batch_size
from diagnose.changes.patches import loading
from diagnose.model.numerics import number

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program

MAX_MADE_SHARE = 0.75  # of the time that goes with the workers, that they compute for batches
SENT_SHARE = 0.5  # of what a worker computes, at most: to pickle a batch and to copy it into shared memory
MAX_DISK_MB_PER_S = 1.0  # more is read from storage, and somebody has to wait for it
_SAME_DRAWS = "unless samples draw random numbers"


def _proposal(finding: Finding, step_ns: float, program: Program) -> Proposal | None:
    facts = with_batch_size(finding.facts, program)
    made_ns = _made_ns(facts, step_ns)
    freed_ns = number(facts, "ready_share") * step_ns if not facts.get("has_device") else 0.0
    taken_ns = finding.lost_ns * (1 - number(facts, "order_share"))  # the sampler runs in the training process already
    if not facts.get("keeps_up") or made_ns is None or made_ns > MAX_MADE_SHARE * (taken_ns + freed_ns):
        return None
    left_ns = made_ns * (1 - SENT_SHARE)
    return Proposal(
        before=loader_call(facts, num_workers=facts.get("num_workers", "num_workers")),
        after=loader_call({**facts, "persistent_workers": None, "prefetch_factor": None}, num_workers=0),
        least=0.0,
        most=(taken_ns - left_ns + freed_ns) / max(finding.lost_ns, 1.0),
        numerics=_numerics(facts),
        needs="samples that wait for nothing, such as a network: a trial shows it",
    )


def _made_ns(facts: Facts, step_ns: float) -> float | None:
    """Return the CPU time of a step's batches in their workers, None where it is not known or storage is read."""
    counters, size = facts.get("counters"), facts.get("batch_size")
    if not isinstance(counters, Mapping) or number(counters, "disk_mb_per_s") > MAX_DISK_MB_PER_S:
        return None
    if "user_ms_per_sample" in counters and isinstance(size, int):
        each_ms = number(counters, "user_ms_per_sample") + number(counters, "system_ms_per_sample")
        return each_ms * 1e6 * size * max(number(facts, "batches_per_step"), 1.0)
    busy, workers = facts.get("workers_busy"), facts.get("num_workers")
    return busy * workers * step_ns if isinstance(busy, float) and isinstance(workers, int) else None


def _numerics(facts: Facts) -> Numerics | None:
    """Return the promise for workers that were kept: torch draws a seed for those only once."""
    if not facts.get("persistent_workers"):
        return None
    later = "without persistent_workers=True the random numbers of later epochs change, their shuffling included"
    return identical(f"in the first epoch {_SAME_DRAWS}; {later}", own_draws=True, first_epoch=True)


def _applies(_program: Program, finding: Finding) -> bool:
    facts = finding.facts
    return not facts.get("by_sampler") and (not is_iterable(facts) or bool(facts.get("shares_out")))


CHANGE = Change(
    id="load-in-process",
    title="Load in the training process, without workers",
    numerics=identical(_SAME_DRAWS, own_draws=True),
    patch=Patch(loading.load_in_process, group="workers"),
    edit=IN_PROCESS,
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.loader_tuning",
)
