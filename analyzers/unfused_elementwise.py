"""Pointwise operators move more memory than a fused pass where one pass would do.

What it looks for
    Two or more different pointwise operators (additions, products, activations, casts, masks) in a row on a stream,
    with outputs of the same size: together at least 10 % of the busy time, or of the step with the host's
    time for them. Within a CUDA graph, torch's own pointwise kernels of one grid. And single pointwise operators whose
    kernels of 20 µs or more reach less than 40 % of the device's bandwidth: the inputs are broadcast, or of several
    layouts.

Why it costs
    Each reads its inputs from memory and writes its output there for the next one to read. One fused kernel keeps
    what lies between in registers. torch's kernels reach 70 to 95 % of the bandwidth where all tensors lie alike, and
    15 to 45 % elsewhere.

What to do
    Compile the model, or the function that holds the chain.

How sure
    Medium: the operators and sizes are recorded, but not whether each takes the one before it. What is lost is the
    time of each run above its longest kernel, and of a single one above what a good kernel takes. Low where shapes were
    not recorded, and in graphs: kernels that take about the same time count as of one size then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.chains import pointwise_tasks
from diagnose.analyzers.common.kernel_findings import busy_part, is_minor
from diagnose.analyzers.common.locate import locate
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import total
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.op_launches import Chain
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE, Group
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="unfused-elementwise",
    kind="kernel",
    order=90,
    changes=("compile-model",),
    also=("patch-operators", "call-operator"),
    needs=("shapes",),
)
MAX_KINDS = 5  # of chains, among which a bundled operator may be
MIN_BUSY_SHARE = 0.1  # of the busy time, or of the step: less comes back only in part when a model is compiled


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time of runs of pointwise kernels above one pass each."""
    found, slow = t.chains, _slow(t)
    if not found and not slow:
        return []
    tasks = np.concatenate([*(chain.tasks for chain in found), *(group.tasks for group in slow)])
    time = busy_part(t, tasks)
    if is_minor(t, tasks, MIN_BUSY_SHARE):
        return []
    in_graph = 2 * sum(chain.time_ns for chain in found if chain.in_graph) > sum(chain.time_ns for chain in found)
    title = "Pointwise operators move more memory than a fused pass"
    if in_graph:
        title = "Pointwise operators of a CUDA graph move more memory than a fused pass"
    elif not found:
        title = "Pointwise kernels run far below the device's bandwidth"
    needed = sum(chain.longest_ns for chain in found) + sum(each.bound_ns / REACHED_SHARE["memory"] for each in slow)
    taken = sum(chain.time_ns for chain in found) + sum(group.time_ns for group in slow)
    one_pass = needed / max(taken, 1)
    return [
        Finding(
            rule=META.id,
            title=title,
            lost_ns=time * (1 - one_pass) / t.steps.num,
            count=len(found) + len(slow),
            total_ns=time,
            median_ns=int(np.median((t.tasks.end - t.tasks.start)[tasks])),
            tasks=tasks,
            evidence=(
                f"{plural(len(tasks) / t.steps.num, 'pointwise kernel')} a step in "
                f"{plural(len(found) / t.steps.num, 'run')} over tensors of one size"
                f"{' and alone' if slow else ''}: {duration(time / t.steps.num)}, "
                f"{percent(time / total(t.occupancy.busy), 0)} of the busy time.",
                *_commonest(found, t.steps.num),
                *(
                    f"{g.op} {g.shapes}: {g.achieved()}, {percent(g.share, 0)} of the device's bandwidth."
                    for g in slow[:3]
                ),
            ),
            where=_where(t, [*found, *slow]),
            confidence="medium" if t.operator_inputs.is_known.any() and not in_graph else "low",
            facts={"chains": _top_chains(found), "in_graph": in_graph},
        )
    ]


def _top_chains(found: list[Chain]) -> list[list[str]]:
    """Return the operators of the kinds of chains, the most expensive first."""
    cost: Counter[tuple[str, ...]] = Counter()
    for chain in found:
        cost[chain.ops] += chain.time_ns
    return [list(ops) for ops, _ in cost.most_common(MAX_KINDS)]


def _commonest(found: list[Chain], num_steps: int) -> list[str]:
    cost: Counter[tuple[str, ...]] = Counter()
    for chain in found:
        cost[chain.ops] += chain.time_ns
    return [
        f"{' > '.join(op.removeprefix('aten::') for op in ops[:8])}: {duration(time / num_steps)} a step."
        for ops, time in cost.most_common(3)
    ]


def _slow(t: Tables) -> list[Group]:
    """Return the pointwise operators outside runs whose kernels leave most of the bandwidth unused.

    Copies are left to the rules of layouts and types.
    """
    alone = pointwise_tasks(t)
    for chain in t.chains:
        alone[chain.tasks] = False
    return [
        group
        for group in t.roofline_groups
        if group.share < SLOW_KERNEL_SHARE and group.op != "aten::copy_" and alone[group.tasks].all()
    ]


def _where(t: Tables, found: Sequence[Chain | Group]) -> tuple[Where, ...]:
    heavy = sorted(found, key=lambda each: -each.time_ns)[:20]
    rows = np.array([t.tasks.launch[each.tasks[0]] for each in heavy], np.intp)
    events = t.trace.events
    return tuple(dict.fromkeys(replace(w, stack=()) for w in locate(t, events.thread[rows], events.start[rows])))[:3]
