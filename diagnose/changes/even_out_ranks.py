"""Balance work across ranks and align their pauses.

What it does
    Gives every rank as many samples of like lengths, and lets pauses such as garbage collection and saving fall on the
    same step everywhere.

What to watch
    The cause on the late rank is named by its own findings.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="even-out-ranks",
    title="Balance work across ranks; align periodic pauses",
    numerics=identical("where the samples stay the same"),
    patch=ByHand("how the work is shared among the ranks is the script's own"),
    edit=ByHand("how the work is shared among the ranks is the script's own"),
    advice=Advice(
        before="if rank == 0 and step % 10 == 0:\n    save(model)",
        after="# the same number of samples, of like lengths, on every rank\n"
        "sampler = DistributedSampler(dataset, shuffle=True)\n"
        "gc.disable()  # collects at another step on every rank; once in a while, on all of them:\n"
        "if step % 1000 == 0:\n    gc.collect()",
        needs="the cause on the late rank, which its own findings name",
    ),
    remedy="diagnose.kernels.gc_schedule",
)
