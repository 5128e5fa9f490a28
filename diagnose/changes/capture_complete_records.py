"""Capture again with complete records.

What it does
    Records fewer steps, so that the profiler's buffers hold all of them.

What to watch
    Nodes of CUDA graphs are recorded by newer drivers only.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="capture-complete-records",
    title="Capture again with complete records",
    numerics=identical(),
    patch=ByHand("it changes the recording, not the script"),
    edit=ByHand("it changes the recording, not the script"),
    advice=Advice(
        after="diagnose trace --steps 3 train.py",
        most=0.0,
        needs="a driver and a torch that record the nodes of CUDA graphs, where graphs are used",
    ),
    records="more",
    without_remedy="a command",
)
