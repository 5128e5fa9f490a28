"""What the causes of idle time mean in one line, and the colour that each one has in every chart."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CATEGORIES", "PARTS", "PATH", "VERDICTS", "Look", "colour", "meaning"]


class Look(NamedTuple):
    """How something is drawn and said: a colour that reads on white and on black, and a few words."""

    colour: str
    words: str


_UNKNOWN = Look("#8b93a1", "")

_CAUSES = {
    "host-sync": Look("#e5484d", "the host waited for the device to drain"),
    "data-stall": Look("#f2811d", "the step waited for its next batch"),
    "exposed-copy": Look("#c99a1e", "a copy held the next task back"),
    "allocator-stall": Look("#a5673f", "the allocator asked the driver for memory"),
    "recompilation": Look("#9b59d0", "code was compiled or loaded inside a step"),
    "gc-pause": Look("#d6569b", "Python's garbage collector ran"),
    "launch-bound": Look("#6366f1", "operators were issued slower than they ran"),
    "python-stall": Look("#2fa36b", "Python code ran between operators"),
    "host-collective": Look("#0f9aa8", "the host waited for other processes"),
    "off-cpu": Look("#75808f", "the launching thread was not running"),
    "unexplained-host": Look("#98a1ae", "the host was late; the trace does not say why"),
    "kernel-latency": Look("#a48ee6", "the usual pause between two queued tasks"),
    "stream-dependency": Look("#4ba3e3", "a task waited for another stream"),
    "exposed-communication": Look("#12b5a6", "waiting for a collective"),
    "device-contention": Look("#3fbf8f", "a queued task found no room on the device"),
    "unexplained-device": Look("#b3bac4", "the task was queued; the trace does not say what held it"),
    "unfused-optimizer": Look("#c2477f", "the optimizer updated parameters one by one"),
    "operators": Look("#5b7fa6", "the host computed inside operators"),
    "lost-records": Look("#5f6b7a", "tasks are missing from the trace"),
    "profiler-overhead": Look("#717c8a", "the profiler's own work"),
    "warm-up": Look("#848e9c", "first-time work, no steady state"),
}

VERDICTS = {
    "cpu-bound": "the host cannot keep the device's queue filled",
    "kernel-bound": "the queue is full: the time is in the device's own work",
    "gaps": "the queue is filled, and still the device has idle stretches",
    "no-gpu": "no device in this trace: what follows is about the host",
}

PARTS = {
    "compute": Look("#5b7fa6", "the device computes"),
    "exposed_communication": Look("#4f9c9a", "it communicates, and computes nothing meanwhile"),
    "exposed_copy": Look("#a3946a", "it copies, and computes nothing meanwhile"),
    "idle": Look("#e5484d", "it runs nothing"),
}
"""The partition of a step; the fields of ``Partition``, in the order they are drawn."""

CATEGORIES = {
    "compute": "#5b7fa6",
    "communication": "#4f9c9a",
    "copy": "#a3946a",
    "operator": "#93a4b8",
    "annotation": "#b9c4d0",
    "runtime": "#76879c",
}
"""The colour of a span of the timeline. Busy time is calm, so that the gaps stand out."""


PATH = {
    "compute": "#5b7fa6",
    "communication": "#4f9c9a",
    "copy": "#a3946a",
    "host": "#f2811d",
    "latency": "#a48ee6",
}
"""The colour of a category of the critical path: the host in a colour of its own, for it is what waits there."""


def colour(cause: str) -> str:
    """Return the colour of a rule's id, grey where it has none of its own."""
    return _CAUSES.get(cause, _UNKNOWN).colour


def meaning(cause: str) -> str:
    """Return what a cause means in a few words, or ""."""
    return _CAUSES.get(cause, _UNKNOWN).words
