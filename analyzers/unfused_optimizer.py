"""The optimizer updates parameters one by one.

What it looks for
    `Optimizer.step` with 50 launches or more per call, most of them not multi-tensor kernels: the idle inside it, and
    the pauses between its kernels where they were queued behind others. And kernels of Adam and AdamW that are not
    fused, where they were queued behind others: their time beyond one pass over parameters, gradients and state, from
    5 % of the busy time on. In a CUDA graph, which holds no mark of the step, these are known by their divisions
    (`addcdiv`).

Why it costs
    A for-loop optimizer launches several tiny kernels for each tensor. The device finishes each before the next is
    launched. And each of eight kernels reads and writes whole tensors again, with multi-tensor kernels too.

What to do
    `fused=True` (one kernel for all tensors), or `foreach=True` where fused is not supported.

How sure
    High: the optimizer marks its own step, and the launches in it are counted. That a fused kernel takes a third of the
    time holds where memory limits both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.optimizers import is_loop, optimizer_facts
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import EMPTY, Intervals, contains, intersect, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.gaps import late_tasks
from diagnose.tables.names import FUSED

META = RuleMeta(
    id="unfused-optimizer",
    kind="idle",
    order=130,
    host_order=90,
    legend=Legend("the optimizer updated parameters one by one", "#c2477f"),
    changes=("fused-optimizer", "foreach-optimizer"),
    inflated=True,
    cause="host-work",
    also=("clip-in-update",),
)


# Tensors that are read or written for each parameter by the eight operations of one update (mul, lerp, mul, addcmul,
# sqrt, div, add, addcdiv: 2 + 3 + 2 + 4 + 2 + 2 + 2 + 4), and by one kernel for all: parameter, gradient and two
# moments read, all but the gradient written.
PASSES = {"Adam": (21, 7), "AdamW": (21, 7)}
MIN_BUSY_SHARE = 0.05  # of the busy time
_TITLES = {"LBFGS": "LBFGS computes each direction from its history, one vector after the other"}


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle inside the step of a for-loop optimizer, and the pauses between its kernels on a full queue."""
    if not is_loop(t):
        return EMPTY
    gaps, steps = t.gaps, t.updates
    called = t.trace.events.start[gaps.launch]
    pauses = (gaps.launch >= 0) & ~gaps.cross_stream & (gaps.end - gaps.queued_at < gaps.latency_ns)
    pauses &= contains(steps, called)
    return union(intersect(intersect(left, gaps.host_part()), steps), intersect(left, gaps.device_part(pauses)))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the step of an optimizer that updates tensor by tensor."""
    return intersect(left, t.updates) if is_loop(t) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the idle time of a for-loop optimizer, and the time of its kernels beyond one pass."""
    facts = optimizer_facts(t)
    if not facts["calls"] and (nodes := np.flatnonzero(t.graphed_updates)).size:
        return _in_graphs(t, nodes)
    what = "launches" if t.device_id >= 0 else "operators"
    text = f"{facts['launches']:.0f} {what} per call of its step, {facts['multi_tensor']:.0f} of them for many tensors."
    title = _TITLES.get(str(facts["name"]), f"{facts['name']} updates parameters one by one")
    idle = idle_finding(t, IdleRule(META.id, title, evidence=lambda _t, _o: [text], facts=facts))
    idle = [replace(finding, where=_or_where_made(t, finding.where)) for finding in idle]
    tasks = _separate_passes(t) if facts["name"] in PASSES else np.empty(0, np.intp)
    rule = KernelRule(
        META.id,
        title if is_loop(t) else f"{facts['name']} passes over its tensors again and again",
        MIN_BUSY_SHARE,
        facts=facts,
    )
    busy = kernel_finding(t, rule, tasks)
    if not busy:
        return idle
    passes, needed = PASSES[str(facts["name"])]
    spared_ns = busy[0].total_ns * (1 - needed / passes)
    base = idle[0] if idle else replace(busy[0], lost_ns=0.0, total_ns=0, evidence=(text,))
    number = f"Its kernels read or write {passes} tensors for each parameter, where one fused kernel takes {needed}."
    return [
        replace(
            base,
            lost_ns=base.lost_ns + spared_ns / t.steps.num,
            total_ns=base.total_ns + int(spared_ns),
            evidence=(*base.evidence, *busy[0].evidence, number),
            tasks=tasks,
        )
    ]


def _or_where_made(t: Tables, where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Return the places, with the line that makes the optimizer where none shows a line that calls it.

    The attribution window, whose lines are merged with these, has them where the timing window has none.
    """
    made = t.capture.info.optimizer.made if t.capture.info else None
    if made is None or t.named is not t or any(place.file for place in where):
        return where
    line = made.begin[0]
    text = made.lines[line - made.first] if 0 <= line - made.first < len(made.lines) else None
    return (Where(made.file, line, op=where[0].op if where else None, code=text and text.strip()), *where)


def _in_graphs(t: Tables, nodes: Rows) -> list[Finding]:
    """Return the finding of an Adam's kernels among the nodes of graphs."""
    passes, needed = PASSES["Adam"]
    num = len(nodes) / t.steps.num
    length = (t.tasks.end - t.tasks.start)[nodes]
    title = "The graph holds an Adam that updates parameters by many kernels"
    rule = KernelRule(
        META.id,
        title,
        MIN_BUSY_SHARE,
        kept_ns=float(length.sum()) * needed / passes,
        evidence=(
            f"Its kernels read or write {passes} tensors for each parameter, where one fused kernel takes {needed}.",
        ),
        confidence="medium",
        facts={"name": "Adam", "launches": num, "has_device": True, "in_graph": True},
    )
    return kernel_finding(t, rule, nodes)


def _separate_passes(t: Tables) -> Rows:
    """Return the tasks of the optimizer's step that were queued behind others and update no whole state at once."""
    called = t.trace.events.start[t.tasks.launch]
    mine = (t.tasks.launch >= 0) & contains(t.updates, called)
    found: Rows = np.flatnonzero(mine & ~t.tasks_matching(FUSED) & ~late_tasks(t.trace, t.tasks))
    return found
