"""Load the samples of a batch at the same time, on threads.

What it does
    `ConcurrentSamples(dataset, threads=16)` loads the samples of a batch on several threads. It helps if loading waits
    for a disk or a network.

What to watch
    Computation in Python is not sped up. Batches of one sample gain nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Patch, Proposal, identical
from diagnose.changes.common.loading import (
    HIDDEN,
    THREADS,
    is_iterable,
    loader_call,
    with_batch_size,
)
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, step_ns: float, program: Program) -> Proposal | None:
    facts = with_batch_size(finding.facts, program)
    size, waiting = facts.get("batch_size"), facts.get("waiting_share")
    threads = min(THREADS, size) if isinstance(size, int) else THREADS
    if not facts.get("waits") or not isinstance(waiting, float) or threads < 2:
        return None
    single = bool(facts.get("single_process"))
    spared = waiting * (1 - 1 / threads)
    rest_ns = step_ns - finding.lost_ns
    most = spared if single else 1 - max(step_ns * (1 - spared) - rest_ns, 0.0) / max(finding.lost_ns, 1.0)
    return Proposal(
        before=loader_call(facts, **_workers(facts)),
        after="from diagnose.kernels.concurrent_samples import ConcurrentSamples\n\n"
        + loader_call({**facts, "wrapped": f"ConcurrentSamples(dataset, threads={threads})"}, **_workers(facts)),
        least=HIDDEN * most,
        most=most,
        needs=f"storage that serves {threads} requests at a time",
        arguments={"threads": threads},
    )


def _applies(_program: Program, finding: Finding) -> bool:
    return not finding.facts.get("starts_with_epochs") and not is_iterable(finding.facts)


def _workers(facts: Facts) -> dict[str, object]:
    workers = facts.get("num_workers")
    return {} if facts.get("single_process") else {"num_workers": workers if workers is not None else "num_workers"}


CHANGE = Change(
    id="concurrent-samples",
    title="Load the samples of a batch at the same time, on threads",
    numerics=identical("if several threads may ask the dataset for samples at once"),
    patch=Patch(loading.concurrent_samples),
    edit=EditLoop(
        "with_threads", "threads", THREADS, "from diagnose.kernels.concurrent_samples import ConcurrentSamples"
    ),
    is_moved=True,
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.concurrent_samples",
)
