"""Load batches in worker processes, ahead of the step.

What it does
    Passes `num_workers=N` and `persistent_workers=True` to the DataLoader. Batches are then loaded while the step
    computes.

What to watch
    Each worker holds a copy of the dataset. Workers that compute need free cores. Handing over a batch costs about 2
    ms. To keep the order of later epochs, leave out `persistent_workers`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Numerics, Patch, Proposal, identical, redrawn
from diagnose.changes.common.loading import (
    FIRST_WORKERS,
    ITERABLE_NUMERICS,
    KEPT_WORKERS,
    SHARED_OUT,
    SPLIT_BY_HAND,
    Cores,
    computing_share,
    draws_at,
    handover_ns,
    hidden_behind_rest,
    hidden_by_first_workers,
    is_iterable,
    leaves_no_gain,
    loader_call,
    recorded_cores,
    shares_cores,
    step_with_workers,
    useful_workers,
    with_batch_size,
)
from diagnose.changes.patches import loading
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.model.numerics import number
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MAX_ADVISED_WORKERS = 16
_SAME_DRAWS = "unless samples draw random numbers"


def _proposal(finding: Finding, step_ns: float, program: Program) -> Proposal | None:
    facts = with_batch_size(finding.facts, program)
    if not facts.get("single_process") or facts.get("restart_share"):
        return None  # or they would start anew with each batch
    batches = max(1.0, number(facts, "batches_per_step"))
    moved = 1 - number(facts, "order_share")  # the sampler runs in the training process
    load_ns, handed_ns = number(facts, "batch_ns") * batches * moved, handover_ns(facts) * batches
    rest_ns = max(step_ns - finding.lost_ns, 1.0)
    pin = {"pin_memory": True} if facts.get("has_device") else {}
    known, computing = recorded_cores(facts), computing_share(facts)
    cpus = known or MAX_ADVISED_WORKERS + 1  # not recorded: enough for what is advised
    if leaves_no_gain(facts, finding.lost_ns * moved, cpus):
        return None
    limit = useful_workers(facts) - 1  # one core stays with the training
    workers = max(1, min(math.ceil(load_ns / rest_ns) + 1, limit, MAX_ADVISED_WORKERS))
    if shares_cores(facts, workers, cpus):  # as many as find a core, where that is better
        free = max(cpus - int(number(facts, "num_threads")), 1)
        workers = min(free, workers, key=lambda num: step_with_workers(facts, load_ns, rest_ns, num, Cores(cpus)))
    cores = f"{workers} CPU core{'s' if workers > 1 else ''} beside the training's,"
    if computing <= 0.3:  # of loading: "little CPU"
        cores = "little CPU, since loading mostly waits,"
    if facts.get("library") == "transformers":
        return _of_a_pipeline(finding, step_ns, is_iterable(facts), workers)
    shared_out = SHARED_OUT if is_iterable(facts) and not facts.get("shares_out") else ""
    busy = number(facts, "ready_share")
    if computing * busy > MAX_READY_SHARE:
        cores = f"{cores.rstrip(',')} (none was free for {percent(busy, 0)} of the recording),"
    hidden = hidden_by_first_workers(facts, finding.lost_ns, rest_ns, workers, cpus)
    if hidden is None:
        return None
    least, most = hidden
    return Proposal(
        title=f"Load batches in {workers} worker process{'es' if workers > 1 else ''}, ahead of the step",
        before=loader_call(facts, num_workers=facts.get("num_workers", 0)),
        after=loader_call(facts, num_workers=workers, persistent_workers=True, **pin),
        beside=shared_out,
        is_whole=not shared_out,
        numerics=ITERABLE_NUMERICS if shared_out else _numerics(draws_at(facts)),
        least=0.0 if shared_out else least,
        most=most if handed_ns or shares_cores(facts, workers, cpus) else moved,
        needs=f"{cores} and memory for {'a copy' if workers == 1 else f'{workers} copies'} of what the dataset holds",
        arguments={"workers": workers, **pin, **({"by_hand": SPLIT_BY_HAND} if shared_out else {})},
    )


def _numerics(draws: str) -> Numerics | None:
    """Return what is certain where a line is known to draw for each sample, None where none is."""
    if not draws:
        return None
    return redrawn(f"samples draw random numbers at {draws}, and workers draw others there; {KEPT_WORKERS}")


def _of_a_pipeline(finding: Finding, step_ns: float, is_chunked: bool, workers: int) -> Proposal:
    """Return how a pipeline of transformers is called: it makes the DataLoader itself.

    It gives one worker to a pipeline that cuts each input into several, whose dataset is iterable.
    """
    num = 1 if is_chunked else workers
    return Proposal(
        title=f"Prepare the pipeline's inputs in {num} worker process{'es' if num > 1 else ''}, ahead of the step",
        before="outputs = pipe(inputs)",
        after=f"outputs = pipe(inputs, num_workers={num})   # inputs: a list or a dataset of several",
        least=0.0,
        most=hidden_behind_rest(finding.lost_ns, step_ns, num),
        needs="several inputs in one call",
        numerics=identical(_SAME_DRAWS, own_draws=True),
        arguments={"workers": num},
    )


CHANGE = Change(
    id="load-in-workers",
    title="Load batches in worker processes, ahead of the step",
    numerics=identical(f"in the first epoch {_SAME_DRAWS}; {KEPT_WORKERS}", own_draws=True, first_epoch=True),
    patch=Patch(loading.load_in_workers),
    edit=FIRST_WORKERS,
    is_moved=True,
    proposal=_proposal,
    remedy="diagnose.kernels.loader_tuning",
)
