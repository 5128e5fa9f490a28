"""Activation checkpointing runs the forward a second time in the backward.

What it looks for
    Forward operators, such as `linear` or norms, inside autograd's backward. Threshold: 5% of GPU busy time or of the
    step.

Why it costs
    Checkpointing trades time for memory. With enough memory, the second forward gains nothing.

What to do
    Checkpoint fewer blocks. Or keep the results of matrix products and recompute only cheap operators
    (`torch.utils.checkpoint.create_selective_checkpoint_contexts`).

How sure
    High. Recomputation inside compiled kernels is not visible.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, in_training
from diagnose.analyzers.common.advice_models import with_launches
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains, intersect, span, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import matching
from diagnose.text.numbers import duration

META = RuleMeta(
    id="recompute",
    kind="kernel",
    order=50,
    host_order=74,
    legend=Legend("the backward ran the forward a second time"),
    changes=("checkpoint-less",),
)
TITLE = "The backward runs the forward a second time"
ROUNDED_NS = 1_000  # files hold whole µs, or what a float has left of the µs since 1970
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |^CheckpointFunctionBackward$")
# Operators that a forward calls and no formula of a gradient does.
_FORWARD = re.compile(
    r"^aten::(linear|bilinear|conv[123]d|conv_transpose[123]d|layer_norm|batch_norm|group_norm|instance_norm|rms_norm"
    r"|embedding(_bag)?|scaled_dot_product_attention|gelu|relu6?_?|leaky_relu_?|elu_?|silu_?|mish_?|hardswish_?"
    r"|dropout_?|(log_)?softmax|lstm|gru|(adaptive_)?(max|avg)_pool[123]d)$"
)


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the second forwards."""
    return worth_claiming(t, left, union(*second_forwards(t).values(), EMPTY))


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time of the second forward."""
    if free is None:
        again = total(intersect(union(*second_forwards(t).values(), EMPTY), span(*t.steps.window))) / t.steps.num
        text = f"Operators of a forward take {duration(again)} of each step inside the backward."
        return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=[text]))
    found, events, launch = np.zeros(len(t.tasks.row), bool), t.trace.events, t.tasks.launch
    for thread, runs in second_forwards(t).items():
        mine = np.flatnonzero((launch >= 0) & (events.thread[launch] == thread))
        found[mine] |= contains(runs, events.start[launch[mine]])
    tasks = np.flatnonzero(free & found)
    return kernel_finding(t, KernelRule(META.id, TITLE, evidence=top_kernels(t, tasks)), tasks)


def second_forwards(t: Tables) -> dict[int, Intervals]:
    """Return when each thread ran a forward inside the backward."""
    backward, forward = (matching(t.trace, (Kind.OP, Kind.ANNOTATION), p) for p in (_BACKWARD, _FORWARD))
    events, found = t.trace.events, {}
    for each in t.threads if len(backward) and len(forward) else ():
        # The nodes that lie in no other, one by one: times are rounded, so that neighbours touch or overlap.
        rows = backward[events.thread[backward] == each]
        start, end = t.trace.events.start[rows], t.trace.events.end[rows]
        reach = np.append(np.iinfo(np.int64).min + ROUNDED_NS, np.maximum.accumulate(end))[:-1]
        outer = start >= reach - ROUNDED_NS
        nodes = Intervals(start[outer], end[outer])
        called = forward[events.thread[forward] == each]
        if not len(nodes.start):
            continue
        # A function of the backward runs a forward up to the last such call: its formula needs what that computes.
        inside = np.searchsorted(nodes.start, events.start[called], side="right") - 1
        keep = (inside >= 0) & (events.end[called] <= nodes.end[inside] + ROUNDED_NS)
        inside, end = inside[keep], events.end[called][keep]
        first = np.flatnonzero(np.diff(inside, prepend=-1))
        if len(first):
            again = union((nodes.start[inside[first]], np.maximum.reduceat(end, first)))
            found[each] = _with_python_behind(t, each, again)
    return found


def _with_python_behind(t: Tables, thread: int, again: Intervals) -> Intervals:
    """Return the runs up to the event behind their last operator.

    The functions of the backward run without Python: what stands there belongs to the second forward.
    """
    events, rows = t.trace.events, t.host_rows(Kind.OP, Kind.RUNTIME)
    rows = rows[events.thread[rows] == thread]
    start, end = events.start[rows], np.sort(events.end[rows], kind="stable")
    last = len(rows) - 1
    begins, ends = np.searchsorted(start, again.end), np.searchsorted(end, again.end, side="right")
    behind = np.where(ends <= last, end[np.minimum(ends, last)], again.end)
    behind = np.where(begins <= last, np.minimum(start[np.minimum(begins, last)], behind), behind)
    return union((again.start, np.maximum(behind, again.end)))


ADVICE = (
    Advice(
        id="checkpoint-less",
        title="Keep the results of heavy operators in checkpointed blocks",
        numerics=identical(),
        before="x = checkpoint(block, x, use_reentrant=False)",
        after="""from torch.utils import checkpoint as ckpt

def keep(ctx, op, *args, **kwargs):   # torch.ops.aten.convolution.default too, if the blocks have some
    if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        return ckpt.CheckpointPolicy.MUST_SAVE
    return ckpt.CheckpointPolicy.PREFER_RECOMPUTE

contexts = lambda: ckpt.create_selective_checkpoint_contexts(keep)
x = ckpt.checkpoint(block, x, use_reentrant=False, context_fn=contexts)""",
        needs="memory for the activations that are kept",
        when=in_training,
        effect=with_launches(  # where memory is there; some blocks may have to stay
            0.75, 1.0, "the second forward", host=lambda t: union(*second_forwards(t).values(), EMPTY)
        ),
        remedy="diagnose.kernels.checkpointing",
    ),
)
