"""What some prescriptions do to single tasks, by a model of the device instead of a share of the cause.

Float32 products take what the roofline of the next precision leaves them; 16-bit gradients halve what a collective
carries, not its latency; batches that are copied ahead on a side stream hold nothing up; merged launches take what a
few of them take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from diagnose.model.diagnosis import Finding
from diagnose.perf_model.gpu_specs import Precision
from diagnose.replay.buckets import START_UP_NS, with_buckets
from diagnose.replay.effects import Effect, of_tasks
from diagnose.replay.host_models import captured_as_graphs, merged_updates
from diagnose.replay.remove_cause import removal
from diagnose.tables import Tables
from diagnose.tables.collectives import DEFAULT_BUCKET_MB
from diagnose.tables.roofline import gpu_spec, groups

__all__ = ["Effect", "effect_of"]

# Of the bound of the new precision: what good libraries reach, with shapes that fit badly and with those that fit.
REACHED = (0.4, 0.7)
# Of the bytes that 16 bits spare, what is gained: the cast of the gradients and back takes some of it.
HALVED = (0.25, 0.5)
HIDDEN = (0.9, 1.0)  # of a copy's time, by the time that passes until its batch is wanted
_FROM_HOST = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)
_PRECISION: Mapping[str, Precision] = {"allow-tf32": "tf32", "autocast": "f16"}


def effect_of(t: Tables, finding: Finding, identity: str, taken: tuple[float, float]) -> Effect:
    """Return the effect of the prescription ``identity``; without a model, ``taken`` of the cause goes."""
    model = _MODELS.get(identity)
    effect = model(t, finding, identity) if model is not None and t.device_id >= 0 else None
    return effect or _share(t, finding, taken)


def _share(t: Tables, finding: Finding, taken: tuple[float, float]) -> Effect:
    least, most = taken
    part = f"between {least:.0%} and {most:.0%}" if least < most else f"{most:.0%}"
    told = f"The change takes {part} of the cause away."
    if finding.rule == "host-sync":
        told = "Nothing else needs the value at once."
    ends = (removal(t, finding, least), removal(t, finding, most), removal(t, finding, (least + most) / 2))
    # Without a wait for the device the host runs ahead, which may cover more than the wait cost.
    limit = t.steps.step_ns if finding.rule == "host-sync" else min(finding.lost_ns, t.steps.step_ns)
    return Effect(*ends, limit, told)


def _next_precision(t: Tables, finding: Finding, identity: str) -> Effect | None:
    peak, precision = gpu_spec(t), _PRECISION[identity]
    rate = peak.rate(precision) if peak else 0.0
    full = [group for group in groups(t) if group.full_precision]
    if peak is None or not rate or not full:
        return None
    smaller = 0.5 if precision == "f16" else 1.0  # of the bytes
    tasks = np.concatenate([group.tasks for group in full])
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    spared = []
    for reached in REACHED:
        share = [
            max(0.0, 1 - max(g.work.flop / rate * 1e9, g.work.bytes * smaller / peak.bandwidth) / reached / g.time_ns)
            for g in full
        ]
        spared.append(np.concatenate([length[g.tasks] * s for g, s in zip(full, share, strict=True)]))
    known = length[tasks].sum() / max(length[finding.tasks].sum(), 1.0)
    told = (
        f"{min(known, 1):.0%} of the float32 products, whose shapes are known, reach {REACHED[0]:.0%} to "
        f"{REACHED[1]:.0%} of the device's {'TF32' if precision == 'tf32' else '16-bit'} rate."
    )
    return of_tasks(t, finding, tasks, (spared[0], spared[1]), told)


def _sixteen_bits(t: Tables, finding: Finding, _identity: str) -> Effect | None:
    tasks = np.flatnonzero(t.tasks.is_collective)
    carried = np.maximum((t.tasks.end - t.tasks.start)[tasks].astype(np.float64) - START_UP_NS, 0.0)
    if not carried.sum():
        return None
    told = (
        f"Each collective takes {HALVED[0]:.0%} to {HALVED[1]:.0%} less, but for {START_UP_NS // 1000} µs of latency."
    )
    return of_tasks(t, finding, tasks, (carried * HALVED[0], carried * HALVED[1]), told)


def _on_a_side_stream(t: Tables, finding: Finding, _identity: str) -> Effect | None:
    tasks = np.flatnonzero(t.tasks.is_copy & t.tasks_matching(_FROM_HOST))
    if not len(tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    told = "Copies to the device run a batch ahead on a side stream, from pinned memory."
    return of_tasks(t, finding, tasks, (length * HIDDEN[0], length * HIDDEN[1]), told, left=(0.5, 0.0))


def _smaller_buckets(t: Tables, finding: Finding, _identity: str) -> Effect | None:
    change = with_buckets(t, DEFAULT_BUCKET_MB)
    if change is None:
        return None
    told = f"Gradients are ready evenly during the backward; a bucket takes {START_UP_NS // 1000} µs and its bytes."
    return Effect(change, change, change, min(finding.lost_ns, t.steps.step_ns), told)


_MODELS: Mapping[str, Callable[[Tables, Finding, str], Effect | None]] = {
    "allow-tf32": _next_precision,
    "autocast": _next_precision,
    "compile-graphs": captured_as_graphs,
    "foreach-optimizer": merged_updates,
    "fused-optimizer": merged_updates,
    "compress-gradients": _sixteen_bits,
    "overlap-gradients": _smaller_buckets,
    "prefetch-to-device": _on_a_side_stream,
}
