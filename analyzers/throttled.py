"""The GPU runs below its maximum clock.

What it looks for
    NVML readings during work: at least 20% show a limit (power, temperature, hardware) and a clock below 90% of that
    maximum.

Why it costs
    Kernels that compute slow down in proportion to the clock. One hot GPU delays all ranks.

What to do
    Raise the power limit if allowed, check the cooling, and compare nodes. If the limit is already at its maximum,
    nothing can be gained.

How sure
    Medium: the cost is an upper bound. Needs `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.nvml_readings import ANY, POWER, clocks_of, gpu_rows, slowed_by
from diagnose.text.numbers import percent

META = RuleMeta(
    id="throttled",
    kind="state",
    order=30,
    changes=("lift-the-limit",),
    needs=("NVML samples",),
)
ADVICE = tuple(
    Advice(
        id="lift-the-limit",
        title="Restore the device's clock: power limit and cooling",
        numerics=identical(),
        before=shows,
        after=raises,
        needs="the machine's administrator",
        when=lambda f, p, vendor=vendor: not f.facts.get("at_most") and (p.vendor == "AMD") == (vendor == "AMD"),  # type: ignore[misc]
    )
    for vendor, shows, raises in (
        ("AMD", "rocm-smi --showpower --showmaxpower --showtemp", "sudo rocm-smi --setpoweroverdrive WATTS"),
        (
            "NVIDIA",
            "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
            "sudo nvidia-smi -pl WATTS   # at most what -q -d POWER calls the maximum",
        ),
    )
)


def find(t: Tables) -> list[Finding]:
    """Name the time that a lower clock costs at most."""
    for gpu in gpu_rows(t):
        clocks = clocks_of(gpu)
        if clocks is None or clocks.slowed.mean() < 0.2:
            continue
        drop = 1 - float(clocks.mhz[clocks.slowed].mean()) / clocks.most_mhz
        if drop < 0.1:  # of the clock; boards differ by a few per cent among themselves
            continue
        share = float(clocks.slowed.mean())
        most_w, limit_w = gpu.max_power_limit_w, gpu.power_limit_w
        bits = clocks.reasons[clocks.slowed] & ANY
        at_most = most_w is not None and limit_w is not None and limit_w >= most_w and bool((bits == POWER).all())
        highest = f" The limit, {limit_w:.0f} W, is the highest that it can be set to." if at_most else ""
        return [
            Finding(
                rule=META.id,
                title=f"The device runs at {percent(1 - drop, 0)} of its clock",
                lost_ns=0.0 if at_most else t.queue.busy_share * t.steps.step_ns * share * drop,
                count=int(clocks.slowed.sum()),
                evidence=(
                    f"{gpu.name}: {clocks.mhz[clocks.slowed].mean():.0f} MHz of {clocks.most_mhz:.0f} MHz, "
                    f"held back by {'; by '.join(slowed_by(clocks))}.{highest}",
                ),
                confidence="medium",
                facts={"at_most": at_most},
            )
        ]
    return []
