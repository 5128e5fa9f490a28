"""Float32 products in fewer bits: what the roofline of the next precision leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

FP16_BY_HAND = "fp16 needs a GradScaler around backward() and the optimizer's step as well"

# Of the bound of the new precision: what good libraries reach, with shapes that fit badly and with those that fit. A
# product that reaches less of its bound today may reach as little, one that reaches more may reach as much.
REACHED = (0.4, 0.7)
# Where shapes are not known, relative to the share of its peak that a product reaches in float32 (80 % with good
# libraries): the same at most, half of it at least; 16-bit products of float32 tensors also pay for their casts.
RELATIVE = {"tf32": (0.5, 1.0), "f16": (0.25, 1.0)}


def products_in(t: Tables, finding: Finding, precision: Literal["tf32", "f16"]) -> Effect | None:
    """Return the effect of the next precision on the products: by their shapes, or by the peaks' ratio without them."""
    import numpy as np

    from diagnose.model.intervals import among, distinct
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.roofline import MIN_RATED_NS, gpu_spec

    peak = gpu_spec(t)
    rate = peak.rate(precision) if peak else 0.0
    if peak is None or not rate:
        return None
    full = [group for group in t.roofline_groups if group.full_precision]
    smaller = 0.5 if precision == "f16" else 1.0  # of the bytes
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    known = np.concatenate([group.tasks for group in full]) if full else np.empty(0, np.intp)
    others = distinct(finding.tasks)
    others = others[~among(others, known)]
    others = others[length[others] >= MIN_RATED_NS]  # the fixed cost of a kernel sets the time of shorter ones
    tasks = np.concatenate([known, others]).astype(np.intp)
    if not len(tasks):
        return None
    spared = []
    today = [min(g.bound_ns / g.time_ns, 1.0) for g in full]
    by_shape = ([min(REACHED[0], now) for now in today], [max(REACHED[1], now) for now in today])
    for reached, relative in zip(by_shape, RELATIVE[precision], strict=True):
        bounds = [max(g.work.flop / rate * 1e9, g.work.bytes * smaller / peak.bandwidth) for g in full]
        share = [
            max(0.0, 1 - bound / of_it / g.time_ns) if of_it > 0 else 0.0
            for g, bound, of_it in zip(full, bounds, reached, strict=True)
        ]
        by_ratio = max(0.0, 1 - peak.rate("fp32") / rate / relative)
        parts = [length[g.tasks] * s for g, s in zip(full, share, strict=True)]
        spared.append(np.concatenate([*parts, length[others] * by_ratio]))
    name = "TF32" if precision == "tf32" else "16-bit"
    share_known = min(length[known].sum() / max(length[finding.tasks].sum(), 1.0), 1.0)
    assumption = (
        f"{percent(share_known, 0)} of the float32 products, whose shapes are known, reach {percent(REACHED[0], 0)} to "
        f"{percent(REACHED[1], 0)} of the device's {name} rate."
    )
    if len(others):
        low, high = RELATIVE[precision]
        assumption += (
            f" Those without shapes get faster by {percent(low, 0)} to {percent(high, 0)} of the ratio of the {name} "
            "peak to the float32 one."
        )
    # The rule's loss is half of the products' time, whatever their shapes; with these known the model goes further.
    time_ns = min(max(finding.total_ns / t.steps.num, finding.lost_ns), t.steps.step_ns)
    return effect_of_tasks(t, finding, tasks, (spared[0], spared[1]), assumption)._replace(limit_ns=time_ns)
