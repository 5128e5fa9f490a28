"""The functions and modules around operators, and which of these operators a rollout calls.

What a rollout calls depends on what the environment answered: it is no loop that one operator could take the place of.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, among
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import FRAME
from diagnose.tables import Tables
from diagnose.tables.host import Layers, host_rows
from diagnose.tables.python_calls import LIBRARY, READ, names_of

# Frames that were open when the recording began: the profiler gives them the line that ran then, not their first.


def open_frames(t: Tables) -> frozenset[int]:
    """Return the training thread's frames that were open as the recording began and as its steps did.

    The profiler writes those down first, each within the one before. Their line is the one that began the recording:
    nothing of a step need run there.
    """
    found: set[int] = set()
    if not len(t.steps.start) or t.main not in t.frame_layers:
        return frozenset()
    frames, first_step, reach = t.frame_layers[t.main], t.steps.window[0], 0
    for depth, (rows, starts) in enumerate(zip(frames.rows, frames.start, strict=True)):
        row, start = int(rows[0]), int(starts[0])
        if start >= first_step or (depth and start >= reach):
            break
        reach = int(frames.event_end[row])
        if reach > first_step:
            found.add(row)
    return frozenset(found)


def names_of_open_frames(t: Tables) -> frozenset[int]:
    """Return the rows of `Trace.names` that these frames have: no other frame has such a name."""
    return frozenset(t.trace.events.name[list(t.open_frames)].tolist())


MODULE_CALL = re.compile(r"^nn\.Module: |torch/nn/modules/module\.py\(\d+\): (_wrapped)?_call_impl$")
NO_LAYERS = Layers((), (), EMPTY.end)
_BACKWARD = r"torch/autograd/.*: (backward|grad|_engine_run_backward)$"
_OPTIMIZER = r"(^|/)torch/optim/"
# What actions and noise are drawn with; initial values and dropout have other names or lie within modules.
_DRAWS = r"^aten::(multinomial|normal_?|bernoulli_?|binomial|poisson|randn?|randn?_like|exponential_)$"


def is_rollout(t: Tables, rows: Rows) -> bool:
    """Return whether operators of a function draw again and again, as a policy's, so that no call knows the next one's.

    They have no gradients, or the host reads a number for each draw: an environment is told the action.
    """
    ops, sequence = host_rows(t.trace, t.main, Kind.OP), t.trace.events.sequence
    is_draw = np.array([re.match(_DRAWS, name) is not None for name in t.trace.names], bool)
    num_draws = int(among(rows, ops[is_draw[t.trace.events.name[ops]]]).sum())
    # That draw in the window: noise of a few steps is fewer.
    if num_draws < 12:
        return False
    if sum(name == READ for name in names_of(t, rows)) >= num_draws:
        return True
    return bool((sequence[ops] >= 0).any() and (sequence[rows] < 0).mean() >= MAJORITY)


def num_calls(t: Tables, frames: set[str]) -> Counter[str]:
    """Return how often functions and modules are called in the window."""
    rows = t.in_window(t.host_rows(Kind.PYTHON))
    wanted = np.array([name in frames for name in t.trace.names], bool)
    names = t.trace.events.name[rows]
    return Counter(t.trace.names[i] for i in names[wanted[names]].tolist())


def stacks(t: Tables, rows: Rows, thread: int | None = None) -> npt.NDArray[np.int32]:
    """Return for each event the names of the frames around it, outermost first, -1 where there are no more.

    The frames are those of a thread, of the training thread unless another one is given.
    """
    events, frames = t.trace.events, t.frame_layers.get(t.main if thread is None else thread, NO_LAYERS)
    found = np.full((len(rows), max(len(frames.rows), 1)), -1, np.int32)
    start, pending = events.start[rows], np.arange(len(rows))
    for depth in range(len(frames.rows)):
        row = frames.open_in(depth, start[pending])
        pending, row = pending[row >= 0], row[row >= 0]
        if not len(pending):
            break
        found[pending, depth] = events.name[row]
    return found


def kind_of(frame: str) -> Literal["torch", "user", "other"]:
    """Return whether a frame is of a module, a backward pass or an optimizer of torch's, or of the user's files."""
    if MODULE_CALL.search(frame) or re.search(_BACKWARD, frame) or re.search(_OPTIMIZER, frame):
        return "torch"
    match = FRAME.match(frame)
    return "user" if match and not LIBRARY.search(match["file"]) else "other"
