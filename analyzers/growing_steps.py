"""Steps get longer as the run goes on, because the work at one place grows.

What it looks for
    CPU only: the last quarter of the steps takes 10% longer than the first. Most of that is at one place in the script.

Why it costs
    This code works on all stored data, such as a whole replay buffer. Long runs slow down far more than the watched
    steps.

What to do
    Work only on new or drawn items: index the stored data, keep a running total, limit the history.

How sure
    High. Needs `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.idioms import call_cause, idiom_facts
from diagnose.analyzers.common.locate import places_of
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="growing-steps",
    kind="run",
    order=15,
    legend=Legend(
        "work grew with the run", heading="Growing steps", meaning="the work of a step grows as the run goes on"
    ),
    needs=("steps of the whole run",),
    changes=("cheaper-line", "bound-work"),
)


def find(t: Tables) -> list[Finding]:
    """Name the place, and what the mean step takes longer than the first."""
    growing = t.growing_steps
    if growing is None:
        return []
    place = growing.place
    facts = idiom_facts(t, {place.path[0]: max(t.capture.run.num, 1)}) if t.capture.run is not None else {}
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
                f"{percent(place.share, 0)} of what later steps take longer is {there}; the first half of them "
                f"spends {percent(place.usual_share, 0)} of its time.",
                *([why.text] if (why := call_cause(facts)) is not None else []),
            ),
            where=places_of(t, place.path),
            facts=facts,
        )
    ]
