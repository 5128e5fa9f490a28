"""The forward runs a second time in the backward: activation checkpointing.

What it looks for
    Operators of a forward (`linear`, convolutions, norms, attention, activations) that run inside the backward of
    autograd, and the kernels launched between the first and the last of them there: at least 5 % of the busy time.

Why it costs
    It is the price of the memory that checkpointing spares. Where the memory is there, the second forward buys nothing.

What to do
    Checkpoint fewer blocks, those that hold most memory for their time; or keep the results of matrix products and
    recompute only what is cheap (selective checkpointing).

How sure
    High that it is recomputed. Free memory is stated only where it was recorded. What a compiled
    backward recomputes inside its own kernels does not show.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered, union
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host import layers
from diagnose.tables.names import matching

META = RuleMeta(
    id="recompute",
    kind="kernel",
    order=50,
    changes=("checkpoint-less",),
)
MIN_SHARE = 0.05  # of the busy time
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |^CheckpointFunctionBackward$")
# Operators that a forward calls and no formula of a gradient does.
_FORWARD = re.compile(
    r"^aten::(linear|conv[123]d|conv_transpose[123]d|layer_norm|batch_norm|group_norm|instance_norm|rms_norm|embedding"
    r"|scaled_dot_product_attention|gelu|relu_?|silu_?|dropout_?|softmax|max_pool[123]d|adaptive_avg_pool[123]d)$"
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of the second forward."""
    tasks = np.flatnonzero(free & _recomputed(t))
    rule = KernelRule(META.id, "The backward runs the forward a second time", MIN_SHARE, evidence=top_kernels(t, tasks))
    return kernel_finding(t, rule, tasks)


def second_forwards(t: Tables) -> dict[int, Intervals]:
    """Return when each thread ran a forward inside the backward."""
    backward, forward = (matching(t.trace, (Kind.OP, Kind.ANNOTATION), p) for p in (_BACKWARD, _FORWARD))
    if not len(backward) or not len(forward):
        return {}
    events = t.trace.events
    found = {}
    for each in t.threads:
        nodes = layers(t.trace, backward[events.thread[backward] == each])
        called = forward[events.thread[forward] == each]
        if nodes.rows and len(
            called
        ):  # outermost nodes one by one: where times are whole µs one begins as another ends
            outer = Intervals(nodes.start[0], nodes.end[0])
            found[each] = _second_runs(outer, Intervals(events.start[called], events.end[called]))
    return found


def _recomputed(t: Tables) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(t.tasks.row), bool)
    events, launch = t.trace.events, t.tasks.launch
    for thread, again in second_forwards(t).items():
        mine = np.flatnonzero((launch >= 0) & (events.thread[np.maximum(launch, 0)] == thread))
        called = events.start[launch[mine]]
        found[mine] |= covered(again, called, called + 1) > 0
    return found


def _second_runs(backward: Intervals, forward: Intervals) -> Intervals:
    """Return for each function of the backward that calls a forward the time from its first to its last such call."""
    inside = np.searchsorted(backward.start, forward.start, side="right") - 1
    keep = (inside >= 0) & (forward.end <= backward.end[np.maximum(inside, 0)]) if len(backward.start) else inside >= 0
    inside, start, end = inside[keep], forward.start[keep], forward.end[keep]
    first = np.flatnonzero(np.diff(inside, prepend=-1))
    if not len(first):
        return union((start, end))
    return union((start[first], np.maximum.reduceat(end, first)))
