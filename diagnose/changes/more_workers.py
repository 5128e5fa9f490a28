"""Load batches in more worker processes.

What it does
    Raises `num_workers` until loading keeps up with the step, at least to twice as many. It also sets
    `persistent_workers=True` and a larger `prefetch_factor`.

What to watch
    Workers that compute need free cores; more of them than cores gain nothing. Each worker holds a copy of the dataset.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.loading import (
    HIDDEN,
    ITERABLE_NUMERICS,
    KEPT_WORKERS,
    MORE_WORKERS,
    PREFETCH_FACTOR,
    SHARED_OUT,
    computing_share,
    hidden_by_more_workers,
    is_iterable,
    loader_call,
    recorded_cores,
    useful_workers,
    with_batch_size,
)
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_SAME_DRAWS = "unless samples share random numbers"


def _proposal(finding: Finding, step_ns: float, program: Program) -> Proposal | None:
    facts = with_batch_size(finding.facts, program)
    if facts.get("single_process"):
        return None
    num = facts.get("num_workers")
    pin = {"pin_memory": True} if facts.get("has_device") else {}
    needs = "free CPU cores; when there are none, make a sample cheaper (decode less, store it prepared)"
    shared_out = SHARED_OUT if is_iterable(facts) and not facts.get("shares_out") else ""
    numerics = ITERABLE_NUMERICS if shared_out else identical(_SAME_DRAWS) if facts.get("persistent_workers") else None
    kept = {"persistent_workers": True, "prefetch_factor": PREFETCH_FACTOR}
    if not isinstance(num, int) or num <= 0:
        before = loader_call(facts, num_workers=num if num is not None else "loader.num_workers")
        cores, waiting = recorded_cores(facts), 1 - computing_share(facts)
        most_useful = useful_workers(facts)
        if cores and most_useful < 2:
            return None  # one worker takes all of it
        # Of two workers, the fewest that most scripts have.
        factor = min(_enough(finding, 1, step_ns), 16, most_useful)
        wanted = f"min({factor} * loader.num_workers, {most_useful if cores else 'os.cpu_count()'})"
        after = loader_call(facts, num_workers=wanted, **kept, **pin)
        rest_ns = max(step_ns - finding.lost_ns, 1.0)
        hidden = max(1 - max(step_ns / factor - rest_ns, 0.0) / max(finding.lost_ns, 1.0), 0.0)
        return Proposal(
            before=before,
            after=after,
            beside=shared_out,
            is_whole=False,
            least=HIDDEN * hidden * waiting,  # there may be as many as the cores keep busy
            most=hidden,
            needs=needs,
            numerics=numerics,
        )
    if facts.get("starts_with_epochs") or facts.get("keeps_up"):
        return None  # the workers keep up once they run: keep-workers
    more = min(_enough(finding, num, step_ns), useful_workers(facts))
    if more <= num:
        return None
    rest_ns = max(step_ns - finding.lost_ns, 1.0)
    least, most = hidden_by_more_workers(finding.facts, step_ns, rest_ns, num, more)
    return Proposal(
        title=f"Use {more} workers, keep them alive and let each prepare more batches",
        before=loader_call(facts, num_workers=num),
        after=loader_call(facts, num_workers=more, **kept, **pin),
        beside=shared_out,
        is_whole=not shared_out,
        numerics=numerics,
        least=least,
        most=most,
        needs=needs,
        arguments={"workers": more, **pin},
    )


def _enough(finding: Finding, num: int, step_ns: float) -> int:
    """Return how many workers deliver a batch as often as the rest of the step wants one, at least twice as many."""
    return max(2 * num, math.ceil(num * step_ns / max(step_ns - finding.lost_ns, 1.0)))


CHANGE = Change(
    id="more-workers",
    title="Use more workers, keep them alive and let each prepare more batches",
    numerics=identical(f"in the first epoch {_SAME_DRAWS}; {KEPT_WORKERS}", first_epoch=True),
    patch=Patch(loading.more_workers, group="workers"),
    edit=MORE_WORKERS,
    is_moved=True,
    proposal=_proposal,
    remedy="diagnose.kernels.loader_tuning",
)
