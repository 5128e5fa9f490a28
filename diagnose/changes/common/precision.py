"""Float32 products in fewer bits: what the roofline of the next precision leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

__all__ = ["FP16_BY_HAND", "REACHED", "products_in"]

FP16_BY_HAND = "fp16 needs a GradScaler around backward() and the optimizer's step as well"

# Of the bound of the new precision: what good libraries reach, with shapes that fit badly and with those that fit. A
# product that reaches less of its bound today may reach as little, one that reaches more may reach as much.
REACHED = (0.4, 0.7)


def products_in(t: Tables, finding: Finding, precision: Literal["tf32", "f16"]) -> Effect | None:
    """Return the effect of the next precision on the products whose shapes are known, None where none is."""
    import numpy as np

    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.roofline import gpu_spec, groups

    peak = gpu_spec(t)
    rate = peak.rate(precision) if peak else 0.0
    full = [group for group in groups(t) if group.full_precision]
    if peak is None or not rate or not full:
        return None
    smaller = 0.5 if precision == "f16" else 1.0  # of the bytes
    tasks = np.concatenate([group.tasks for group in full])
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    spared = []
    today = [min(g.bound_ns / g.time_ns, 1.0) for g in full]
    for reached in ([min(REACHED[0], now) for now in today], [max(REACHED[1], now) for now in today]):
        bounds = [max(g.work.flop / rate * 1e9, g.work.bytes * smaller / peak.bandwidth) for g in full]
        share = [
            max(0.0, 1 - bound / of_it / g.time_ns) if of_it > 0 else 0.0
            for g, bound, of_it in zip(full, bounds, reached, strict=True)
        ]
        spared.append(np.concatenate([length[g.tasks] * s for g, s in zip(full, share, strict=True)]))
    known = length[tasks].sum() / max(length[finding.tasks].sum(), 1.0)
    assumption = (
        f"{min(known, 1):.0%} of the float32 products, whose shapes are known, reach {REACHED[0]:.0%} to "
        f"{REACHED[1]:.0%} of the device's {'TF32' if precision == 'tf32' else '16-bit'} rate."
    )
    # The rule's loss is half of the products' time, whatever their shapes; with these known the model goes further.
    time_ns = min(max(finding.total_ns / t.steps.num, finding.lost_ns), t.steps.step_ns)
    return effect_of_tasks(t, finding, tasks, (spared[0], spared[1]), assumption)._replace(limit_ns=time_ns)
