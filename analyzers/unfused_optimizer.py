"""The optimizer updates parameters one by one.

What it looks for
    `Optimizer.step` with 50 or more launches, most of them single-tensor kernels. Also unfused Adam and AdamW on a busy
    GPU, if a fused kernel saves 5% of GPU busy time.

Why it costs
    A loop over parameters launches several tiny kernels per tensor. Even `foreach` kernels read whole tensors several
    times.

What to do
    Pass `fused=True` to the optimizer, or `foreach=True` if fused is not supported.

How sure
    High.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.locate import place_of_call
from diagnose.model.diagnosis import Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, contains, intersect, quantiles, subtract, union
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dispatch import TINY_OPERATOR_NS
from diagnose.tables.gaps import late_tasks
from diagnose.tables.host import outermost
from diagnose.tables.names import BACKWARD, FUSED, LAUNCH, OPTIMIZER_STEP

META = RuleMeta(
    id="unfused-optimizer",
    kind="idle",
    order=130,
    host_order=90,
    legend=Legend("the optimizer updated parameters one by one"),
    changes=("fused-optimizer", "foreach-optimizer"),
    inflated=True,
    cause="host-work",
)
# Tensors that are read or written for each parameter by the eight operations of one update (mul, lerp, mul, addcmul,
# sqrt, div, add, addcdiv: 2 + 3 + 2 + 4 + 2 + 2 + 2 + 4), and by one kernel for all: parameter, gradient and two
# moments read, all but the gradient written.
KEPT_SHARE = 7 / 21
_PASSES = "Its kernels read or write 21 tensors for each parameter; one fused kernel takes 7."
_OF_PASSES = frozenset({"Adam", "AdamW"})
_MULTI_TENSOR = r"multi_tensor|multi_tensor_apply|foreach|[Ff]used"
_NAME = r"Optimizer\.step#(?P<name>\w+)"
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
    """Claim, without a device, what the step of an optimizer takes because it updates tensor by tensor."""
    return intersect(left, one_by_one(t)) if is_loop(t) else EMPTY


def one_by_one(t: Tables) -> Intervals:
    """Return, without a device, what of the updates goes where one operator updates all parameters.

    What Python does before the first operator and after the last one stays: it collects the tensors of each step. Of
    each operator that takes longer than a call, the passes over memory stay that one operator makes too.
    """
    start, end = t.trace.events.start, t.trace.events.end
    rows = t.host_rows(Kind.OP)
    rows = rows[contains(t.updates, start[rows]) & ~among(rows, t.calls(OPTIMIZER_STEP, Kind.OP))]
    rows = outermost(t.trace, rows[t.trace.events.thread[rows] == t.main])
    if not len(rows):
        return t.updates
    calling = min(float(quantiles(end[rows] - start[rows], 0.1)[0]), TINY_OPERATOR_NS)
    stays = KEPT_SHARE if optimizer_facts(t)["name"] in _OF_PASSES else 1.0
    kept = np.maximum(end[rows] - start[rows] - calling, 0) * stays
    first = np.searchsorted(start[rows], t.updates.start)
    last = np.searchsorted(start[rows], t.updates.end) - 1
    some = last >= first
    between = Intervals(start[rows][first[some]], end[rows][last[some]])
    return subtract(intersect(between, t.updates), Intervals(start[rows], start[rows] + kept.astype(np.int64)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of a for-loop optimizer, and the time of its kernels beyond one pass."""
    facts, nodes = optimizer_facts(t), np.flatnonzero(t.graphed_updates)
    if not calls_of_step(t).calls and nodes.size:
        kept_ns = float((t.tasks.end - t.tasks.start)[nodes].sum()) * KEPT_SHARE
        title = "The graph holds an Adam that updates parameters by many kernels"
        known = {"name": "Adam", "launches": len(nodes) / t.steps.num, "has_device": True, "in_graph": True}
        rule = KernelRule(META.id, title, kept_ns=kept_ns, evidence=(_PASSES,), confidence="medium", facts=known)
        return kernel_finding(t, rule, nodes)
    what = "launches" if t.device_id >= 0 else "operators"
    text = f"{facts['launches']:.0f} {what} per call of its step, {facts['multi_tensor']:.0f} of them for many tensors."
    title = _TITLES.get(str(facts["name"]), f"{facts['name']} updates parameters one by one")
    idle = idle_finding(t, IdleRule(META.id, title, evidence=[text], facts=facts))
    made = t.capture.known.optimizer.made
    if made is not None and t.named is t and idle and not any(place.file for place in idle[0].where):
        # The line that makes the optimizer, where none shows a line that calls it. The attribution window, whose lines
        # are merged with these, has them where the timing window has none.
        op = idle[0].where[0].op if idle[0].where else None
        lines = place_of_call(made) or (Where(made.file, made.begin[0]),)
        idle = [replace(idle[0], where=(*(replace(each, op=op) for each in lines), *idle[0].where))]
    tasks = np.empty(0, np.intp)
    if facts["name"] in _OF_PASSES:  # queued behind other tasks, and no kernel that updates the whole state at once
        mine = (t.tasks.launch >= 0) & contains(t.updates, t.trace.events.start[t.tasks.launch])
        tasks = np.flatnonzero(mine & ~t.tasks_matching(FUSED) & ~late_tasks(t.trace, t.tasks))
    passing = title if is_loop(t) else f"{facts['name']} passes over its tensors again and again"
    busy = kernel_finding(t, KernelRule(META.id, passing, facts=facts), tasks)
    if not busy:
        return idle
    spared_ns = busy[0].total_ns * (1 - KEPT_SHARE)
    base = idle[0] if idle else replace(busy[0], lost_ns=0.0, total_ns=0, evidence=(text,))
    return [
        replace(
            base,
            lost_ns=base.lost_ns + spared_ns / t.steps.num,
            total_ns=base.total_ns + int(spared_ns),
            evidence=(*base.evidence, *busy[0].evidence, _PASSES),
            tasks=tasks,
        )
    ]


class _Calls(NamedTuple):
    """The calls of an optimizer's step; launches (without a device: operators) are those of one."""

    calls: int
    launches: float
    multi_tensor: float
    calls_model: bool  # by a closure that holds most of the backward passes' operators, as that of LBFGS


def calls_of_step(t: Tables) -> _Calls:
    """Return what a call of the optimizer's step launches."""
    events, steps, rows = t.trace.events, t.updates, t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)
    launches = t.calls(LAUNCH) if t.device_id >= 0 else t.host_rows(Kind.OP)
    launches = launches[contains(steps, events.start[launches])]
    mine = t.tasks.row[among(t.tasks.launch, launches)] if t.device_id >= 0 else launches
    times = np.bincount(events.name[mine])
    multi = sum(int(times[n]) for n in np.flatnonzero(times).tolist() if re.search(_MULTI_TENSOR, t.trace.names[n]))
    backward = contains(steps, events.start[t.calls(BACKWARD, Kind.OP)])
    num = max(1, len(rows))
    return _Calls(len(rows), len(launches) / num, multi / num, bool(2 * backward.sum() > len(backward)))


def optimizer_facts(t: Tables) -> Facts:
    """Return the optimizer's class, its arguments where the capture has them, and what a call of its step launches."""
    rows = t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)
    first = re.search(_NAME, t.name(int(rows[0]))) if len(rows) else None
    return {
        **as_facts(t.capture.known.optimizer),
        **calls_of_step(t)._asdict(),
        "name": first["name"] if first else "the optimizer",
        "has_device": t.device_id >= 0,
    }


def is_loop(t: Tables) -> bool:
    """Return whether the optimizer's step launches kernels tensor by tensor.

    A foreach optimizer makes about 10 to 30 launches, a fused one 1 to 4 for each group of tensors.
    """
    step = calls_of_step(t)
    few = step.launches / 2 if t.device_id >= 0 else 1.0
    return not step.calls_model and step.launches >= 50 and step.multi_tensor < few
