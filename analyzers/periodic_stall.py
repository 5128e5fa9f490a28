"""One step in many takes several times as long as the others.

What it looks for
    Steps of at least three times the median that recur regularly. Also long steps with an evaluation, checkpoint,
    rollout, new epoch or garbage collection. Threshold: 1% of the run's time, for evaluations 25%.

Why it costs
    A profile of a few steps misses the long ones, whose cost may be larger.

What to do
    Do this work less often. Evaluate on fewer batches or in another process, and save checkpoints from a background
    thread.

How sure
    High for regular long steps, low for a single one. Needs `diagnose trace`. `--keep-going` watches the whole run.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.locate import places_of
from diagnose.model.diagnosis import Confidence, Finding
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.run_steps import COLLECTION, TIMING, Stall
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="periodic-stall",
    kind="run",
    order=10,
    legend=Legend("long steps"),
    needs=("steps of the whole run",),
    changes=("save-in-background", "batch-rollouts", "load-mapped", "evaluate-less", "keep-workers", "schedule-gc"),
    also=("save-less-often",),
    is_symptom=True,
)
_EVALUATE = Advice(
    id="evaluate-less",
    title="Evaluate less often and in larger batches, or in another process",
    numerics=identical("of training; results come less often"),
    after="""if step % {half_as_often} == 0:                  # half as often: half of the cost
    with torch.inference_mode():          # keeps no graph
        evaluate(model, validation_loader)   # its DataLoader: a larger batch_size, workers that persist
# or in parallel: save a checkpoint and start a process that evaluates it""",
    needs="no decision of each of these steps that rests on the result",
    watch="Early stopping and schedules that read the result react later.",
    when=lambda f, _: f.facts.get("phase") == "evaluation",
    least=0.5,
    most=0.9,
)
ADVICE = (
    _EVALUATE,
    replace(
        _EVALUATE,
        title="Keep what this pass computes alike each time, and make the rest cheaper",
        after="""# what stays the same from one pass to the next, or within a pass, is computed once and kept
# half as often only if nothing reads its result in between:
if step % {half_as_often} == 0:
    ...""",
        when=lambda f, _: f.facts.get("phase") == "inference",
    ),
)


# Of the run that evaluation takes at least: as scripts usually do it, it takes 5 to 20 %, and is wanted.
MIN_SHARES = {"evaluation": 0.25, "inference": 0.25}
LOADER_FACTS = ("num_workers", "persistent_workers", "batch_size", "num_batches", "made")
WHAT = {
    "evaluation": "it evaluates the model",
    "checkpoint": "it saves a checkpoint",
    "rollout": "it collects data with the model",
    "inference": "it computes without gradients",
    "loading": "it waits for a loader that starts its next epoch",
    COLLECTION: "Python's garbage collector runs",
    "other": "it works between the update and the next batch",
}


def find(t: Tables) -> list[Finding]:
    """Name each kind of long steps, the most expensive first."""
    least = THRESHOLDS.naming_share
    found = [_finding(t, each) for each in t.stalls if each.share >= MIN_SHARES.get(each.phase, least)]
    return sorted(found, key=lambda finding: -finding.lost_ns)


def _finding(t: Tables, stall: Stall) -> Finding:
    num, is_shown = len(stall.rows), stall.place or stall.phase
    often = f"1 step in {'' if stall.period else 'about '}{stall.every}" if num > 1 else f"1 of {stall.num_steps} steps"
    what = f": {WHAT[stall.phase]}" if stall.phase else ""
    confidence: Confidence = "high" if stall.period and is_shown else "medium"
    known = as_facts(t.capture.known.loader)
    return Finding(
        rule=META.id,
        title=f"{often} is much longer{what}",
        lost_ns=stall.lost_ns,
        share=stall.share,
        count=num,
        total_ns=int(stall.lost_ns * stall.num_steps),
        median_ns=int(stall.each_ns - stall.base_ns),
        evidence=tuple(_evidence(t, stall)),
        where=places_of(t, stall.place),
        confidence=confidence if num > 1 else "low",
        facts={
            "period": stall.every,
            "regular": bool(stall.period),
            "ratio": round(stall.each_ns / stall.base_ns, 2),
            "cost_factor": round(stall.factor, 3),
            "phase": stall.phase,
            "has_device": t.device_id >= 0,
            **{name: known[name] for name in LOADER_FACTS if name in known},
        },
    )


def _evidence(t: Tables, stall: Stall) -> list[str]:
    num = len(stall.rows)
    evidence = [
        f"{num} of {stall.num_steps} watched steps took {stall.each_ns / 1e6:,.1f} ms each, the others "
        f"{stall.base_ns / 1e6:,.1f} ms: {duration(stall.lost_ns)} a step, {percent(stall.share, 0)} of the run's "
        "time.",
    ]
    if stall.phase:
        part = "the collector's" if stall.phase == COLLECTION else stall.phase
        evidence.append(f"{percent(stall.phase_share, 0)} of what they take longer is {part}.")
    if stall.place:
        there = f"in {stall.place[0][2]}" if stall.in_function else "at this line or in what it calls"
        evidence.append(f"{percent(stall.place_share, 0)} of the samples in it were {there}.")
    if num == 1:
        evidence.append("It came once, so how often it recurs is not known: --keep-going watches the whole run.")
    else:
        evidence.append(f"Half as often, it costs {duration(stall.lost_ns / 2)} a step less.")
        if stall.factor >= 1.1:  # by which the cost of these steps is uncertain; less needs no sentence
            least, most = stall.lost_ns / stall.factor, stall.lost_ns * stall.factor
            evidence.append(
                f"Judged by {num} of them, the cost over a longer run is {duration(least)} to {duration(most)} a step "
                "(95 %)."
            )
    run = t.capture.run
    if run is not None and not (run.state[stall.rows] == TIMING).any():
        evidence.append("None of the steps in the timing window is one of them: the other findings do not hold it.")
    return evidence
