"""Which modules a loop calls again and again: one that takes their place computes the loop in one operator.

A module that a step calls often is in a loop where one call of the function that calls it, or one of a module around
it, makes many of these calls. A function that calls it once, and is itself called for each action of a rollout, has no
loop; what a rollout calls depends on what the environment answered.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, among, contains, distinct
from diagnose.model.locations import FRAME
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import Layers, host_rows
from diagnose.tables.names import MODULE
from diagnose.tables.python_calls import names_of
from diagnose.tables.sampled_issuer import LIBRARY, READ
from diagnose.text.patterns import lazy_pattern

__all__ = ["MODULE_CALL", "NO_LAYERS", "called_again", "is_rollout", "kind_of", "num_calls", "stacks"]

MIN_CALLS = 12  # of the same module in a step: micro-batches of one step are fewer
MIN_ROLLOUT = 0.5  # of a function's operators that have no gradients, and of a module's calls that a draw follows
MODULE_CALL = lazy_pattern(r"^nn\.Module: |torch/nn/modules/module\.py\(\d+\): (_wrapped)?_call_impl$")
NO_LAYERS = Layers((), (), EMPTY.end)
_BACKWARD = lazy_pattern(r"torch/autograd/.*: (backward|grad|_engine_run_backward)$")
_OPTIMIZER = lazy_pattern(r"(^|/)torch/optim/")
# What actions and noise are drawn with; initial values and dropout have other names or lie within modules.
_DRAWS = lazy_pattern(r"^aten::(multinomial|normal_?|bernoulli_?|binomial|poisson|randn?|randn?_like|exponential_)$")


@shared_table
def called_again(t: Tables) -> frozenset[str]:
    """Return the frames of the modules that a loop of a function, or one within a module, calls again and again.

    Beside a device what a model launches is its own: generation calls a model for each token, which no loop can spare.
    """
    if t.device_id >= 0:
        return frozenset()
    rows, names = t.in_window(t.calls(MODULE, Kind.PYTHON)), t.trace.names
    called = Counter(t.name(row) for row in rows.tolist())
    often = {name for name, num in called.items() if num >= MIN_CALLS * t.steps.num}
    rows = rows[[t.name(row) in often for row in rows.tolist()]] if often else rows[:0]
    within = Counter[tuple[str, str]]()
    in_rollout = _in_rollout(t, rows)
    for row, stack, apart in zip(rows.tolist(), stacks(t, rows), in_rollout.tolist(), strict=True):
        above = [names[i] for i in stack.tolist() if i >= 0]
        above = above[: above.index(t.name(row))] if t.name(row) in above else above
        modules = {frame for frame in above if MODULE.match(frame)}
        function = next((frame for frame in reversed(above) if kind_of(frame) == "user"), None)
        within.update((t.name(row), module) for module in modules)
        if function is not None and not (apart and not modules):
            within[t.name(row), function] += 1
    calls = num_calls(t, {around for _, around in within})
    return frozenset(
        name for (name, around), num in within.items() if num >= MIN_CALLS * max(calls[around], t.steps.num)
    )


def is_rollout(t: Tables, rows: Rows) -> bool:
    """Return whether operators of a function draw again and again, as a policy's, so that no call knows the next one's.

    They have no gradients, or the host reads a number for each draw: an environment is told the action.
    """
    num_draws = int(among(rows, _draws(t)).sum())
    if num_draws < MIN_CALLS:
        return False
    if sum(name == READ for name in names_of(t, rows)) >= num_draws:
        return True
    return _has_sequences(t) and float((t.trace.events.sequence[rows] < 0).mean()) >= MIN_ROLLOUT


def _in_rollout(t: Tables, calls: Rows) -> Mask:
    """Return of a module's calls whether they are of a rollout: without gradients, or one draw after nearly each."""
    events = t.trace.events
    start, end = events.start[calls], events.end[calls]
    found = np.zeros(len(calls), bool)
    if _has_sequences(t):
        operators = host_rows(t.trace, t.main, Kind.OP)
        numbered = events.start[operators[events.sequence[operators] >= 0]]
        found |= np.searchsorted(numbered, end) == np.searchsorted(numbered, start)
    drawn = events.start[_draws(t)]
    drawn = drawn[~contains(t.covering(t.calls(MODULE, Kind.PYTHON)), drawn)]
    for name in distinct(events.name[calls]).tolist():
        mine = np.flatnonzero(events.name[calls] == name)
        follows = np.diff(np.searchsorted(drawn, np.append(start[mine], events.end.max(initial=0))))
        if (follows > 0).mean() >= MIN_ROLLOUT:
            found[mine] = True
    return found


def _has_sequences(t: Tables) -> bool:
    rows = host_rows(t.trace, t.main, Kind.OP)
    return bool((t.trace.events.sequence[rows] >= 0).any())


@shared_table
def _draws(t: Tables) -> Rows:
    rows = host_rows(t.trace, t.main, Kind.OP)
    is_draw = np.array([_DRAWS.match(name) is not None for name in t.trace.names], bool)
    found: Rows = rows[is_draw[t.trace.events.name[rows]]]
    return found


def num_calls(t: Tables, frames: set[str]) -> Counter[str]:
    """Return how often functions and modules are called in the window."""
    rows = t.in_window(t.host_rows(Kind.PYTHON))
    wanted = np.array([name in frames for name in t.trace.names], bool)
    names = t.trace.events.name[rows]
    return Counter(t.trace.names[i] for i in names[wanted[names]].tolist())


def stacks(t: Tables, rows: Rows) -> npt.NDArray[np.int32]:
    """Return for each event the names of the frames around it, outermost first, -1 where there are no more."""
    events, frames = t.trace.events, t.frame_layers.get(t.main, NO_LAYERS)
    found = np.full((len(rows), max(len(frames.rows), 1)), -1, np.int32)
    start, pending = events.start[rows], np.arange(len(rows))
    for depth in range(len(frames.rows)):
        row = frames.open_in(depth, start[pending])
        pending, row = pending[row >= 0], row[row >= 0]
        if not len(pending):
            break
        found[pending, depth] = events.name[row]
    return found


@lru_cache(maxsize=4096)  # all stacks have few different ones
def kind_of(frame: str) -> Literal["torch", "user", "other"]:
    """Return whether a frame is of a module, a backward pass or an optimizer of torch's, or of the user's files."""
    if MODULE_CALL.search(frame) or _BACKWARD.search(frame) or _OPTIMIZER.search(frame):
        return "torch"
    match = FRAME.match(frame)
    return "user" if match and not LIBRARY.search(match["file"]) else "other"
