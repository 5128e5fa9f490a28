"""List the lines that hold the memory at its peak.

What it does
    Watches one step and lists the lines whose tensors fill the peak, and what outlives the step; writes the same when
    memory runs out.

What to watch
    It changes nothing by itself; recording the stacks slows that step.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="find-memory",
    title="List the lines that hold the memory at its peak",
    numerics=identical(),
    patch=ByHand("it lists what holds the memory, and changes nothing"),
    edit=ByHand("it lists what holds the memory, and changes nothing"),
    advice=Advice(
        after="from diagnose.kernels.memory_snapshot import memory_watch, snapshot_on_oom\n\n"
        "with memory_watch() as watch:\n    train_step(batch)\n"
        "print(watch, watch.alive())   # the peak by line, and what outlives the step\n"
        'with snapshot_on_oom("out-of-memory"):   # around the whole run\n    ...',
        most=0.0,
    ),
    remedy="diagnose.kernels.memory_snapshot",
)
