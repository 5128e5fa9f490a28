"""Gradients of a backward in buckets of another size: when each bucket is full, and how long its reduction takes."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Floats

__all__ = ["LATENCY_NS", "bandwidth_of", "rebucketed", "transfer_ns"]

LATENCY_NS = 20_000  # of a collective, whatever it carries


def bandwidth_of(num_bytes: Floats, transfer: Floats) -> float:
    """Return the bytes per ns of collectives of these sizes that take so long, ns, of which one part is latency."""
    return float(np.median(num_bytes / np.maximum(transfer - LATENCY_NS, 1.0)))


def transfer_ns(num_bytes: float, rate: float) -> float:
    """Return what a collective of so many bytes takes at a rate in bytes per ns, once all members are there."""
    return LATENCY_NS + num_bytes / rate


def rebucketed(ready: Floats, num_bytes: Floats, begin: float, bucket_bytes: float) -> tuple[Floats, Floats]:
    """Return when each of the new buckets is full, and its bytes.

    Gradients become ready evenly between the moments at which the recorded buckets were.

    Args:
        ready: when the last gradient of each recorded bucket was ready, ns.
        num_bytes: of each recorded bucket.
        begin: when the first gradient was computed, ns.
        bucket_bytes: of the new buckets; the last one takes the rest.
    """
    filled = np.concatenate([[0.0], np.cumsum(num_bytes)])
    moments = np.maximum.accumulate(np.concatenate([[min(begin, float(ready[0]))], ready]))
    cuts = np.append(np.arange(bucket_bytes, filled[-1], bucket_bytes), filled[-1])
    return np.interp(cuts, filled, moments), np.diff(cuts, prepend=0.0)
