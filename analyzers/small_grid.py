"""Long kernels use only a part of the GPU.

What it looks for
    Kernels of 20 µs or more with fewer thread blocks than half of the multiprocessors, while nothing else runs.
    Threshold: 10% of GPU busy time.

Why it costs
    A thread block runs on one multiprocessor. The others have no work until the kernel ends.

What to do
    Give each kernel more work: a larger batch, or one batched call such as `torch.bmm`. Or run independent kernels on
    separate streams.

How sure
    Medium: the work may not split further.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, other_training, rounding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import covered, distinct, union
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import MIN_RATED_NS, device_of

META = RuleMeta(
    id="small-grid",
    kind="kernel",
    order=110,
    changes=("fill-the-device",),
)
_MORE = Advice(
    id="fill-the-device",
    title="Do more in each call: a larger batch, or many small problems in one batched call",
    numerics=other_training("a batched kernel rounds differently, a larger batch trains differently"),
    before="outputs = [x @ w for x, w in zip(inputs, weights)]",
    after="""outputs = torch.bmm(torch.stack(inputs), torch.stack(weights)).unbind()
y = model(x)   # or {twice} samples: the blocks of an operator grow with the batch""",
    needs="problems of one size, or memory for a larger batch",
    when=lambda _, p: p.trains is not False,
)
ADVICE = (
    _MORE,
    replace(
        _MORE,
        numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        when=lambda _, p: p.trains is False,
    ),
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time in which most of the device waits for a few blocks."""
    device = device_of(t)
    num_sms = device.num_sms if device else 0
    grid = t.trace.events.grid[t.tasks.row]
    length = t.tasks.end - t.tasks.start
    is_small = (
        (grid > 0) & (grid < 0.5 * num_sms) & (length >= MIN_RATED_NS) & ~t.tasks.is_collective & ~t.tasks.is_copy
    )
    tasks = np.flatnonzero(is_small & free)
    if not len(tasks):
        return []
    # Which tasks have the device for themselves for most of their time.
    alone = np.ones(len(tasks), bool)
    streams = distinct(t.tasks.stream)
    for stream in streams.tolist() if len(streams) > 1 else []:
        mine = t.tasks.stream[tasks] == stream
        others = t.tasks.stream != stream
        start, end = t.tasks.start[tasks[mine]], t.tasks.end[tasks[mine]]
        beside = covered(union((t.tasks.start[others], t.tasks.end[others])), start, end)
        alone[mine] = beside <= 0.5 * (end - start)  # of a kernel's time that other streams may fill at most
    tasks = tasks[alone]
    kept = float((length[tasks] * (grid[tasks] / num_sms)).sum())
    longest = tasks[np.argsort(-length[tasks], kind="stable")[:3]].tolist()
    evidence = [
        f"{t.name(int(t.tasks.row[i]))[:80]}: {int(grid[i])} blocks for {num_sms} multiprocessors, "
        f"{length[i] / 1e6:.3f} ms."
        for i in longest
    ]
    rule = KernelRule(META.id, "Long kernels use a part of the device", 0.1, kept, evidence, confidence="medium")
    return kernel_finding(t, rule, tasks)
