"""Pin the batches and copy them one step ahead.

What it does
    Copies the next batch from pinned memory on a side stream while the step computes.

What to watch
    One more batch lives on the device, and its copy on the host is pinned.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, Patch, identical
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

HIDDEN = (0.9, 1.0)  # of a copy's time, by the time that passes until its batch is wanted
HOST_LEFT = (0.5, 0.0)  # of the host's part of the wait
_FROM_HOST = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if finding.facts["to_host"] == finding.facts["num"]:
        return None
    return Advice(
        before="for batch in loader:\n    batch = batch.to(device)",
        after="from diagnose.kernels.prefetch import DevicePrefetcher\n\n"
        "for batch in DevicePrefetcher(loader, device):   # pins, copies on a side stream, a batch ahead\n    ...",
        least=0.5,
        needs="memory on the device for one more batch, and pinned memory on the host",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    import numpy as np

    from diagnose.replay.effects import effect_of_tasks

    tasks = np.flatnonzero(t.tasks.is_copy & t.tasks_matching(_FROM_HOST))
    if not len(tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    assumption = "Copies to the device run a batch ahead on a side stream, from pinned memory."
    spared = (length * HIDDEN[0], length * HIDDEN[1])
    return effect_of_tasks(t, finding, tasks, spared, assumption, host_left=HOST_LEFT)


CHANGE = Change(
    id="prefetch-to-device",
    title="Pin the batches and copy them one step ahead on a side stream",
    numerics=identical(),
    patch=Patch(loading.prefetch_to_device, needs_gpu=True),
    edit=ByHand("which loop takes the batches to the device only the script's author knows"),
    advice=_advice,
    effect=_effect,
    remedy="diagnose.kernels.prefetch",
)
