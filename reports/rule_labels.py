"""Labels and colours of everything in a report that is not a rule; those of rules come with the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.model.rules import Legend

__all__ = ["CATEGORIES", "FAMILY_COLOURS", "PARTS", "PATH", "PHASES", "TABULAR", "shown_phases"]


PARTS = {
    "compute": Legend("computing", "#5b7fa6"),
    "exposed_communication": Legend("communicating, computing nothing meanwhile", "#3f8f8c"),
    "exposed_copy": Legend("copying, computing nothing meanwhile", "#8f7f4f"),
    "idle": Legend("idle", "#e5484d"),
}
"""The partition of a step; the fields of ``Partition``, in the order they are shown."""

TABULAR = {
    "compute": "computing",
    "exposed_communication": "communication not overlapped",
    "exposed_copy": "copies not overlapped",
}
"""The names of these parts where there is little room: in a bar and in a table."""

FAMILY_COLOURS = ("#5b7fa6", "#7d9cbd", "#44688f", "#9db6cf", "#34557a")
"""The colours of what a device does, family after family."""

PHASES = {
    "training": Legend("the rest of the step, with forward, backward and update", "#5b7fa6"),
    "loading": Legend("waiting for the next batch", "#a3946a"),
    "evaluation": Legend("in evaluation mode, or batches without gradients", "#c2577a"),
    "rollout": Legend("gradients off several times before the backward pass, and what lies between", "#a06cc9"),
    "inference": Legend("gradients off before the backward pass, or steps without one", "#a48ee6"),
    "checkpoint": Legend("writing a checkpoint", "#f2811d"),
    "other": Legend("between the update and the next batch", "#93a4b8"),
}
"""The phases of a run."""

MIN_PHASE_SHARE = 0.01  # of the run: phases that take less beside the training are not worth a table

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


def shown_phases(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of a run where there are others than its steps and their batches, else nothing."""
    steps = max(("training", "inference"), key=lambda name: phases.get(name, 0.0))
    others = (share for name, share in phases.items() if name not in (steps, "loading"))
    return dict(phases) if max(others, default=0.0) >= MIN_PHASE_SHARE else {}
