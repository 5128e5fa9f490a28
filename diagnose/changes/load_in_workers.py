"""Load batches in worker processes, ahead of the step.

What it does
    Gives the DataLoader workers. With w of them a batch arrives every load/w, and the rest of the step runs meanwhile.

What to watch
    Loading that computes shares the cores with the step, which keeps one: workers are at most as many as the others.
    Loading that waits needs none. The saving lies between all of the stall and what is left of it where load/w is
    longer than the rest of the step, or where all cores together are; at least nothing, where other programs kept the
    training waiting for a core, and where each worker of a stream has to be given its part first. Handing a batch
    over takes the worker and the training about 2 ms each: it is taken off, and where it costs about what loading
    does, workers are not prescribed. Without a device operators keep a core for each of their threads: workers that
    take one of those make each operator wait for its last thread, and training three times as long (measured on two
    cores). They are advised there only where loading takes that much more, or with `torch.set_num_threads` of one.

    The first epoch has the same order and the same random numbers as without workers. Later ones have not, since
    `persistent_workers=True` draws no new seed for the workers of an epoch from the generator that shuffles. Where a
    run must repeat one without workers, leave that argument out: workers are then started with each epoch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, Change, Numerics, Patch, identical, other_training
from diagnose.changes.common.loading import (
    CHEAPER,
    FIRST_WORKERS,
    HIDDEN,
    HIDDEN_WAITING,
    ITERABLE_NUMERICS,
    KEPT_WORKERS,
    MIN_GAIN,
    SHARED_OUT,
    SPLIT_BY_HAND,
    draws_at,
    handover_ns,
    is_iterable,
    loader_call,
    number,
    recorded_cores,
    shares_cores,
    step_with_workers,
    with_batch_size,
)
from diagnose.changes.patches import loading
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MAX_WORKERS = 16
MIN_SAVED = 0.05  # of the finding at best; less is not worth another process
_SAME_DRAWS = "where samples do not draw from the main process's random state"


def _advice(finding: Finding, step_ns: float, program: Program) -> Advice | None:
    facts = with_batch_size(finding.facts, program)
    if not facts.get("single_process") or facts.get("restart_share"):
        return None  # or they would start anew with each batch
    batches = max(1.0, number(facts, "batches_per_step"))
    load_ns, handed_ns = number(facts, "batch_ns") * batches, handover_ns(facts) * batches
    rest_ns = max(step_ns - finding.lost_ns, 1.0)
    pin = {"pin_memory": True} if facts.get("has_device") else {}
    known, waits = recorded_cores(facts), bool(facts.get("waits"))
    cpus = known or MAX_WORKERS + 1  # not recorded: enough for what is advised
    if (not waits and cpus < 2) or finding.lost_ns * (1 - MIN_GAIN) < handed_ns:
        return None  # no core to load on, or taking batches from workers costs about what loading them does
    limit = MAX_WORKERS if waits else cpus - 1  # one stays with the training
    workers = max(1, min(math.ceil(load_ns / rest_ns) + 1, limit, MAX_WORKERS))
    if shares_cores(facts, workers, cpus):  # as many as find a core, where that is better
        free = max(cpus - int(number(facts, "num_threads")), 1)
        workers = min(free, workers, key=lambda num: step_with_workers(facts, load_ns, rest_ns, num, cpus))
    cores = f"{workers} CPU core{'s' if workers > 1 else ''} beside the training's,"
    takes = "little CPU, since loading waits," if waits else cores
    if facts.get("library") == "transformers":
        return _of_a_pipeline(is_iterable(facts), workers)
    shared_out = SHARED_OUT if is_iterable(facts) and not facts.get("shares_out") else ""
    busy = 0.0 if waits else number(facts, "ready_share")
    if busy > MAX_READY_SHARE:
        takes = f"{cores.rstrip(',')} (none was free for {percent(busy, 0)} of the recording),"
    left, cheaply_left = (
        (step_with_workers(facts, load_ns + ns, rest_ns + ns, workers, cpus) - rest_ns) / max(finding.lost_ns, 1.0)
        for ns in (handed_ns, handed_ns / CHEAPER)
    )
    shares = shares_cores(facts, workers, cpus)
    most = max(0.0, 1 - cheaply_left) if handed_ns or shares else 1.0
    if most < MIN_SAVED or (left >= 1 and not (waits or facts.get("has_device"))):
        return None  # or it only pays where handing batches over is as cheap as in a loop without a step
    is_open = busy > MAX_READY_SHARE or bool(shared_out) or shares
    return Advice(
        title=f"Load batches in {workers} worker process{'es' if workers > 1 else ''}, ahead of the step",
        before=loader_call(facts, num_workers=facts.get("num_workers", 0)),
        after=loader_call(facts, num_workers=workers, persistent_workers=True, **pin),
        beside=shared_out,
        is_whole=not shared_out,
        numerics=ITERABLE_NUMERICS if shared_out else _numerics(draws_at(facts)),
        least=0.0 if is_open else max(0.0, min(HIDDEN_WAITING if waits else HIDDEN, 1 - left)),
        most=most,
        needs=f"{takes} and memory for {'a copy' if workers == 1 else f'{workers} copies'} of what the dataset holds",
        arguments={"workers": workers, **pin, **({"by_hand": SPLIT_BY_HAND} if shared_out else {})},
    )


def _numerics(draws: str) -> Numerics | None:
    """Return what is certain where a line is known to draw for each sample, None where none is."""
    if not draws:
        return None
    return other_training(f"samples draw random numbers at {draws}, and workers draw others there; {KEPT_WORKERS}")


def _of_a_pipeline(is_chunked: bool, workers: int) -> Advice:
    """Return how a pipeline of transformers is called: it makes the DataLoader itself.

    It gives one worker to a pipeline that cuts each input into several, whose dataset is iterable.
    """
    num = 1 if is_chunked else workers
    return Advice(
        title=f"Prepare the pipeline's inputs in {num} worker process{'es' if num > 1 else ''}, ahead of the step",
        before="outputs = pipe(inputs)",
        after=f"outputs = pipe(inputs, num_workers={num})   # inputs: a list or a dataset of several",
        least=0.0,
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
    advice=_advice,
    remedy="diagnose.kernels.loader_tuning",
)
