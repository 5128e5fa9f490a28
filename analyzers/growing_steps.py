"""Steps get longer as the run goes on, because the work at one place grows.

What it looks for
    Steps without the profiler, of which each quarter takes longer than the one before and the last at least a tenth
    longer than the first, and one place of the script that has what the later ones take longer. What the rest of the
    step takes longer is at most half as much in proportion: a machine that slows down slows everything. On a recording
    of one process without a device.

Why it costs
    The place works on all that was stored so far, to use a few of it or to add a little: a copy of a replay buffer
    before some rows are drawn from it, a sum over the whole history, a search through a list that grows. Each step
    costs more than the one before, and a run of a day much more than the watched seconds.

What to do
    Work on what is drawn or new: index what is stored, keep a running total, bound the history.

How sure
    High that steps grow and where, as far as samples of the watched steps show it. The cost is that of the watched
    steps; later ones cost more.
"""

from __future__ import annotations

from diagnose.analyzers.common.locate import places_of
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="growing-steps",
    kind="run",
    order=15,
    legend=Legend("work grew with the run", "#8f5d9b", "Growing steps", "the work of a step grows as the run goes on"),
    needs=("steps of the whole run",),
    changes=("bound-work",),
)


def find(t: Tables) -> list[Finding]:
    """Name the place, and what the mean step takes longer than the first."""
    growing = t.growing_steps
    if growing is None:
        return []
    place = growing.place
    _, line, function = place.path[0]
    there = f"in {function}" if place.in_function else f"at line {line} or in what it calls"
    return [
        Finding(
            rule=META.id,
            title="Each step takes longer than the one before: work grows with the run",
            lost_ns=growing.lost_ns,
            share=growing.share,
            count=growing.num_steps,
            total_ns=int(growing.lost_ns * growing.num_steps),
            evidence=(
                f"Over {growing.num_steps:,} steps without the profiler the step went from "
                f"{duration(growing.first_ns)} to {duration(growing.last_ns)}: {duration(growing.lost_ns)} of the mean "
                f"step, {percent(growing.share, 0)} of the run's time.",
                f"{percent(place.share, 0)} of what later steps take longer is {there}, where the first half of them "
                f"spends {percent(place.usual_share, 0)} of its time.",
            ),
            where=places_of(t, place.path),
        )
    ]
