"""Pin the batches and copy them one step ahead.

What it does
    `for batch in DevicePrefetcher(loader, device)` copies the next batch from pinned memory while the step computes.

What to watch
    One more batch is kept on the device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_copies_to_the_device
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import LINK_SHARE
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

_PINNED = re.compile(r"Pinned", re.IGNORECASE)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if "num" in finding.facts and finding.facts["to_host"] == finding.facts["num"]:
        return None
    return Proposal(
        before="for batch in loader:\n    batch = batch.to(device)",
        after="from diagnose.kernels.prefetch import DevicePrefetcher\n\n"
        "for batch in DevicePrefetcher(loader, device):   # pins, copies on a side stream, a batch ahead\n    ...",
        least=0.5,
        needs="memory on the device for one more batch, and pinned memory on the host",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    import numpy as np

    from diagnose.model.events import Kind
    from diagnose.model.intervals import among
    from diagnose.replay.effects import Effect, limit_of
    from diagnose.replay.transforms import CopiesAhead
    from diagnose.tables.names import FROM_HOST, LOADER_NEXT, PAGEABLE
    from diagnose.tables.roofline import gpu_spec

    tasks = np.flatnonzero(t.tasks.is_copy & t.tasks_matching(FROM_HOST))
    if not len(tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    size, spec = t.trace.events.size[t.tasks.row[tasks]], gpu_spec(t)
    blocks = t.tasks_matching(PAGEABLE)[tasks] | among(t.tasks.launch[tasks], t.blocking_calls)
    staged = blocks & ~t.tasks_matching(_PINNED)[tasks] & (size > 0)
    took, text = [length, length], "at the recorded rate"
    if staged.any():
        # Of PCIe 3 and 5 with 16 lanes: where the device is in no table.
        links = (spec.pcie, spec.pcie) if spec is not None and spec.pcie > 0 else (16.0, 64.0)
        rates = [share * link for share, link in zip(LINK_SHARE, links, strict=True)]
        took = [np.where(staged, np.minimum(length, size / rate), length) for rate in rates]
        text = f"at {rates[0]:.0f} to {rates[1]:.0f} GB/s"
    # Pageable batches gain by pinning also where none can be taken ahead; pinned ones do not. A loader can.
    in_place = staged.any() and not len(t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)))
    return Effect(
        CopiesAhead(t, tasks, took[0], is_ahead=not in_place),
        CopiesAhead(t, tasks, took[1]),
        limit_of(t, finding, frees_host=True),
        f"Copies to the device run {'at most ' if in_place else ''}a batch ahead on a side stream, from pinned memory "
        f"{text}; no call waits for them.",
    )


CHANGE = Change(
    id="prefetch-to-device",
    title="Pin the batches and copy them one step ahead on a side stream",
    numerics=identical(),
    patch=Patch(loading.prefetch_to_device, needs_gpu=True),
    proposal=_proposal,
    applies=to_copies_to_the_device,
    effect=_effect,
    remedy="diagnose.kernels.prefetch",
)
