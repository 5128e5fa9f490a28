"""What is known of the script's DataLoader, and the change that follows from it. Shared by device and host rules."""

from __future__ import annotations

import math
import os

import numpy as np

from diagnose.analyzers.common.idle_findings import prescription
from diagnose.model.diagnosis import Facts, Finding, Prescription
from diagnose.model.events import Kind
from diagnose.model.records import LoaderRecord, as_facts
from diagnose.tables import Tables
from diagnose.tables.host_gaps import waiting_share
from diagnose.tables.names import LOADER_NEXT

__all__ = ["loading_evidence", "loading_facts", "loading_prescriptions"]

MOST_WORKERS = 16
THREADS = 8  # that wait for storage at the same time, in each process that loads
MIN_SAMPLES = 5
# Of the stall, what is gone at least when workers keep up: fetching a batch from them, and the cores they take, cost.
HIDDEN, HIDDEN_WAITING = 0.7, 0.9
WAITING = 0.7  # of the samples within loading, or of its workers' lives: it is reading or waiting then, not computing


def loading_facts(t: Tables) -> Facts:
    """Return the loader's arguments where the capture has them, and what the trace shows of it."""
    rows = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    names = {t.name(row) for row in rows.tolist()}
    lengths = (t.trace.events.end - t.trace.events.start)[rows]
    known = t.capture.info.loader if t.capture.info else LoaderRecord()
    single = any("SingleProcess" in name for name in names)
    seen, waiting = waiting_share(t, t.covering(rows))
    return {
        **as_facts(known),
        "single_process": single,
        "num_workers": 0 if known.num_workers is None and single else known.num_workers,
        "batch_ns": int(np.median(lengths)) if len(lengths) else 0,
        "batches_per_step": len(rows) / max(1, t.steps.num),
        "has_device": t.device_id >= 0,
        "recorded_here": t.capture.info is not None,  # more or less: captures are seldom analysed elsewhere
        "waits": single and int(seen.sum()) >= MIN_SAMPLES and int(waiting.sum()) >= WAITING * int(seen.sum()),
        "waiting_share": int(waiting.sum()) / max(1, int(seen.sum())) if single else None,
    }


def loading_evidence(facts: Facts) -> list[str]:
    """Say what one batch costs and how it is loaded."""
    how = "in the training process" if facts["single_process"] else "by worker processes"
    workers = facts.get("num_workers")
    said = f" (num_workers={workers})" if workers is not None else ""
    spends = " Loading waits off the CPU most of that time." if facts.get("waits") else ""
    busy = facts.get("workers_busy")
    if isinstance(busy, float):
        spends = f" The workers compute {busy:.0%} of their time."
    return [f"One batch is loaded {how}{said}; the median wait is {_ns(facts, 'batch_ns') / 1e6:.2f} ms.{spends}"]


def _ns(facts: Facts, key: str) -> float:
    value = facts.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _call(facts: Facts, **arguments: object) -> str:
    name = facts.get("dataset") or "dataset"
    batch = facts.get("batch_size")
    given = [f"batch_size={batch}"] if batch is not None else ["batch_size=batch_size"]
    given += [f"{key}={value}" for key, value in arguments.items()]
    return f"DataLoader({name}, {', '.join(given)})"


def loading_prescriptions(finding: Finding, step_ns: float) -> list[Prescription]:
    """Prescribe workers, or more of them, and where loading waits, to let the samples of a batch wait together."""
    together = _samples_together(finding, step_ns)
    return [_workers(finding, step_ns), *([together] if together else [])]


def _workers(finding: Finding, step_ns: float) -> Prescription:
    """Prescribe workers, or more of them, so that loading overlaps with the step.

    With w workers a batch arrives every load/w; the rest of the step runs meanwhile. So between all of the stall is
    saved (loading is hidden entirely) and what is left when load/w is longer than the rest of the step. Loading that
    waits needs no core; other loading shares them with the step.
    """
    facts = finding.facts
    load_ns = _ns(facts, "batch_ns") * max(1.0, _ns(facts, "batches_per_step"))
    rest_ns = max(step_ns - finding.lost_ns, 1.0)
    pin = {"pin_memory": True} if facts.get("has_device") else {}
    if facts.get("single_process"):
        cpus = os.cpu_count() or 1
        waits = bool(facts.get("waits"))
        limit = cpus if facts.get("recorded_here") and not waits else MOST_WORKERS
        workers = max(1, min(math.ceil(load_ns / rest_ns) + 1, limit, MOST_WORKERS))
        takes = "little CPU, since loading waits," if waits else f"{workers} CPU cores,"
        hands = workers if waits else max(1, min(workers, cpus))
        left_ns = max(load_ns / hands - rest_ns, 0.0)
        return prescription(
            finding,
            step_ns,
            id="load-in-workers",
            title=f"Load batches in {workers} worker processes, ahead of the step",
            before=_call(facts, num_workers=facts.get("num_workers", 0)),
            after=_call(facts, num_workers=workers, persistent_workers=True, **pin),
            least=max(0.0, min(HIDDEN_WAITING if waits else HIDDEN, 1 - left_ns / max(finding.lost_ns, 1.0))),
            safety="same numbers where samples do not draw from the main process's random state",
            needs=f"{takes} and memory for {workers} copies of what the dataset holds",
            remedy="diagnose.kernels.loader_tuning",
            arguments={"workers": workers},
        )
    num = facts.get("num_workers")
    more = min(2 * num, 32) if isinstance(num, int) and num > 0 else None
    least, most = _hidden_by_more(facts, num, more, step_ns, rest_ns) if more and isinstance(num, int) else (0.0, 0.9)
    more_workers = {"num_workers": more or "2 * loader.num_workers", "persistent_workers": True, "prefetch_factor": 4}
    return prescription(
        finding,
        step_ns,
        id="more-workers",
        title=f"Use {more} workers, keep them alive and let each prepare more batches"
        if more
        else "Use more workers, keep them alive and let each prepare more batches",
        before=_call(facts, num_workers=num if num is not None else "…"),
        after=_call(facts, **more_workers, **pin),
        least=least,
        most=most,
        safety="same numbers where samples do not draw from shared random state",
        needs="free CPU cores; when there are none, make a sample cheaper (decode less, store it prepared)",
        remedy="diagnose.kernels.loader_tuning",
        arguments={"workers": more} if more else None,
    )


def _samples_together(finding: Finding, step_ns: float) -> Prescription | None:
    """Prescribe threads that load the samples of a batch, where loading is known to wait.

    What a batch waits for is shared by the threads; what it computes is not. A loader of batches of one has nothing to
    share.
    """
    facts = finding.facts
    busy, size = facts.get("workers_busy"), facts.get("batch_size")
    single, share = bool(facts.get("single_process")), facts.get("waiting_share")
    waiting = share if single else 1 - busy if isinstance(busy, float) else None
    threads = min(THREADS, size) if isinstance(size, int) else THREADS
    if not isinstance(waiting, float) or waiting < WAITING or (single and not facts.get("waits")) or threads < 2:
        return None
    spared = waiting * (1 - 1 / threads)
    lost_ns = max(finding.lost_ns, 1.0)
    rest_ns = step_ns - finding.lost_ns
    most = spared if single else 1 - max(step_ns * (1 - spared) - rest_ns, 0.0) / lost_ns
    name = str(facts.get("dataset") or "dataset")
    workers = facts.get("num_workers")
    given = {"num_workers": workers if workers is not None else "num_workers"} if not single else {}
    return prescription(
        finding,
        step_ns,
        id="concurrent-samples",
        title="Load the samples of a batch at the same time, on threads",
        before=_call(facts, **given),
        after="from diagnose.kernels.concurrent_samples import ConcurrentSamples\n\n"
        + _call({**facts, "dataset": f"ConcurrentSamples({name}, threads={threads})"}, **given),
        least=HIDDEN * most,
        most=most,
        safety="same numbers where several threads may ask the dataset for samples at once",
        needs=f"storage that serves {threads} requests at a time",
        remedy="diagnose.kernels.concurrent_samples",
        arguments={"threads": threads},
    )


def _hidden_by_more(facts: Facts, num: int, more: int, step_ns: float, rest_ns: float) -> tuple[float, float]:
    """Return which share of the stall is gone at least and at most when ``more`` workers load instead of ``num``.

    Workers that are waited for deliver ``num`` batches in ``num`` steps, so that of ``more`` workers one arrives every
    ``num / more`` steps. At least that much is gone only where what the workers compute leaves the step its core.
    """
    lost_ns = max(step_ns - rest_ns, 1.0)
    left_ns = max(step_ns * num / more - rest_ns, 0.0)
    hidden = max(1 - left_ns / lost_ns, 0.0)
    busy = facts.get("workers_busy")
    if not isinstance(busy, float) or more * busy + 1 > (os.cpu_count() or 1):
        return 0.0, HIDDEN_WAITING * hidden
    return (HIDDEN_WAITING if busy <= 1 - WAITING else HIDDEN) * hidden, hidden
