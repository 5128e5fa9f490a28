"""Run on a device that no other process uses.

What it does
    Lists what runs on each device, and starts the script on a free one.

What to watch
    A device that is shared with a display or another user's job shows up again when that one is busy.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="own-device",
    title="Run on a device that no other process uses",
    numerics=identical(),
    patch=ByHand("another process holds the device"),
    edit=ByHand("it is a matter of how the script is started"),
    advice=Advice(
        before="python train.py",
        after="nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv\n"
        "CUDA_VISIBLE_DEVICES=1 python train.py   # one that nobody else uses",
    ),
    without_remedy="a command of the machine",
)
