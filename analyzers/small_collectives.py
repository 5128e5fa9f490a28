"""Many collectives are too small to fill the link.

What it looks for
    More than 10 collectives of less than 100 µs per step that are not overlapped. Threshold: 1% of the step. On the
    CPU, more than 10 of less than 1 MB: called at one line, or by FSDP that wraps single layers.

Why it costs
    A collective has a latency of 10–50 µs, however few bytes it carries. FSDP adds its own work for each unit.

What to do
    Reduce in buckets, as DistributedDataParallel does, or wrap whole blocks in FSDP. Or put the tensors into one flat
    buffer before the call.

How sure
    High for the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.kernel_findings import top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import EMPTY, Intervals, intersect, total
from diagnose.model.line_calls import SHARDS
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import exposed_small
from diagnose.tables.small_exchanges import exchange_times, small_exchanges
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, plural

META = RuleMeta(
    id="small-collectives",
    kind="kernel",
    order=20,
    host_order=46,
    legend=Legend("many small collectives"),
    changes=("shard-blocks", "bucket-gradients"),
    computes=False,
    also=("tune-buckets",),
    awaits_ranks=True,
)
ADVICE = (
    Advice(
        id="shard-blocks",
        title="Apply FSDP to whole blocks, not to single layers{there}",
        numerics=identical(),
        after="""from torch.distributed.fsdp import fully_shard

for block in model.blocks:       # the repeated ones: one gather and one reduction for each
    fully_shard(block)
fully_shard(model)               # what is left: embeddings, norms, the head
# a small model: only fully_shard(model), or DistributedDataParallel""",
        needs="memory for the gathered weights of one block",
        when=lambda f, _: f.facts.get("sharded"),
        least=0.5,
    ),
)
TITLE = "Many collectives are too small to fill the link"


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, what many small collectives take, and FSDP's work for each of them."""
    small = small_exchanges(t)
    return intersect(left, exchange_times(t, small)) if small is not None else EMPTY


def find(t: Tables, _free: Mask | None = None) -> list[Finding]:
    """Name the time of collectives that are too small."""
    if t.device_id < 0:
        return _find_on_host(t)
    tasks = t.small_collectives
    alone = total(exposed_small(t))
    if not len(tasks) or alone < THRESHOLDS.naming_share * t.steps.num * t.steps.step_ns:
        return []
    length = (t.tasks.end - t.tasks.start)[tasks]
    return [
        Finding(
            rule=META.id,
            title=TITLE,
            lost_ns=alone / t.steps.num,
            count=len(tasks),
            total_ns=alone,
            median_ns=int(np.median(length)),
            tasks=tasks,
            evidence=(
                f"{plural(len(tasks) / t.steps.num, 'collective')} of {np.median(length) / 1e3:.0f} µs at the median a "
                f"step; nothing hides {duration(alone / t.steps.num)} of them.",
                *top_kernels(t, tasks),
            ),
            facts={"one_by_one": True, "has_device": True},
        )
    ]


def _find_on_host(t: Tables) -> list[Finding]:
    small = small_exchanges(t)
    if small is None:
        return []
    title, fewer = TITLE, max(round(small.fewer * small.num), 1)
    text = f"{small.num} collectives of {small.num_bytes / 1e3:,.0f} kB (mean) a step; {fewer} would do."
    if small.is_sharded:
        title = "FSDP gathers and reduces single layers: many small collectives"
        text += f" FSDP is applied to {plural(len(small.units), 'single layer')}, such as {small.units[0]}."
    facts = {"sharded": small.is_sharded, "one_by_one": not small.is_sharded, "has_device": False}
    made = sorted(each for each, code in t.capture.lines.items() if small.is_sharded and SHARDS.search(code))
    where = [Where(*place, code=t.capture.lines[place]) for place in made]
    if not where and small.place is not None:
        where = [Where(*small.place)]
    return [
        replace(f, lost_ns=f.lost_ns * (1 - small.fewer), where=tuple(dict.fromkeys((*where, *f.where))))
        for f in idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=[text], facts=facts))
    ]
