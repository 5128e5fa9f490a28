"""Capture again after the warm-up.

What it does
    Records later steps, when kernels are loaded, memory is taken and code is compiled.

What to watch
    `diagnose trace` waits by itself until step times have settled.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="capture-steady-steps",
    title="Capture again after the warm-up",
    numerics=identical(),
    patch=ByHand("it changes the recording, not the script"),
    edit=ByHand("it changes the recording, not the script"),
    advice=Advice(
        after="diagnose trace train.py        # waits until step times have settled\n"
        "# or, with torch.profiler: schedule=torch.profiler.schedule(wait=20, warmup=2, active=3)",
        most=0.0,
        needs="a few more steps of running time",
    ),
    records="later",
    without_remedy="a command",
)
