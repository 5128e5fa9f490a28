"""Labels and colours of everything in a report that is not a rule; those of rules come with the diagnosis."""

from __future__ import annotations

from diagnose.model.rules import Legend

__all__ = ["CATEGORIES", "PARTS", "PATH", "VERDICTS"]


VERDICTS = {
    "cpu-bound": "the host cannot keep the device's queue filled",
    "kernel-bound": "the queue is full: the time is in the device's own work",
    "gaps": "the queue is filled, and still the device has idle stretches",
    "no-gpu": "no device in this trace: what follows is about the host",
}

PARTS = {
    "compute": Legend("the device computes", "#5b7fa6"),
    "exposed_communication": Legend("it communicates, and computes nothing meanwhile", "#4f9c9a"),
    "exposed_copy": Legend("it copies, and computes nothing meanwhile", "#a3946a"),
    "idle": Legend("it runs nothing", "#e5484d"),
}
"""The partition of a step; the fields of ``Partition``, in the order they are shown."""

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
"""The colour of a category of the critical path: the host in a colour of its own, since the step waits for it."""
