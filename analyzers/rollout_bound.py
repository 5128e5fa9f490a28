"""The model runs without gradients for a large part of every step: a rollout, generation, a teacher.

What it looks for
    Time with gradients off before the first backward pass, in at least half of the steps. If the data flow is recorded,
    only operators in modules and products count. Threshold: 20% of the run's time.

Why it costs
    The model waits for an environment, or produces one token or action at a time.

What to do
    Step many environments at once and call the policy on all of them. Simulate in other processes, use a cache for
    generation, or compile the policy.

How sure
    High for the time. An evaluation in every step looks the same. Needs `diagnose trace`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.advice import Advice, other_training
from diagnose.analyzers.common.locate import line_at
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, contains, intersect, span, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import shows_values
from diagnose.tables.host import Layers, host_rows, outermost
from diagnose.tables.names import BACKWARD, MODULE
from diagnose.tables.python_calls import HEAVY
from diagnose.tables.run_steps import lines_in, phase_shares
from diagnose.text.numbers import percent


def _outermost_modules(t: Tables, rows: Rows) -> set[int]:
    """Return the rows of the outermost module frames that are open at these operators."""
    frames, start = t.frame_layers.get(t.main, Layers((), (), EMPTY.end)), t.trace.events.start[rows]
    is_module = np.array([MODULE.match(name) is not None for name in t.trace.names], bool)
    found, pending = set[int](), np.ones(len(rows), bool)
    for depth in range(len(frames.rows)):
        row = frames.open_in(depth, start)
        hit = pending & (row >= 0)
        hit[hit] = is_module[t.trace.events.name[row[hit]]]
        found.update(row[hit].tolist())
        pending &= ~hit
    return found


META = RuleMeta(
    id="rollout-bound",
    kind="run",
    order=20,
    legend=Legend("the model collected data"),
    needs=("steps of the whole run",),
    changes=("batch-rollouts",),
)
ADVICE = (
    Advice(
        id="batch-rollouts",
        title="Run the model without gradients in one call, or store its outputs",
        numerics=other_training("what is collected comes from more environments"),
        after="""with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    targets = teacher(x)                # one call for the whole batch, no graph
# a teacher or an encoder that does not change: compute its outputs once and store them with the samples""",
        needs="several calls per step, or inputs that come again: one call of inputs that are always new saves nothing",
        when=lambda f, _: f.facts.get("phase") == "inference",
        most=0.95,
    ),
)


MIN_ROLLOUT_SHARE = 0.2  # of the run: target networks, usual teachers and moving averages take less
MIN_MODEL_CALLS = 4  # of a model in an interval, a step: a teacher is called once or twice, each token is a call
TITLES = {
    "rollout": "Training waits while the model collects data",
    "inference": "Training waits while the model runs without gradients",
}


def find(t: Tables) -> list[Finding]:
    """Name the time without gradients that every step has; of one step in many it is the rule `periodic-stall`."""
    run, shares, plain = t.capture.run, phase_shares(t.capture), t.plain_steps
    if run is None or not run.phase("backwards").any():
        return []
    mean_ns = (plain.mean_ns if plain is not None else 0.0) or t.steps.step_ns
    places = lines_in(t.capture, run.began_ns, run.phase("rollout") + run.phase("inference"))
    model = _model_without_gradients(t)
    if model is not None and not shares.get("rollout"):
        places = [place for place in places if place[:2] in model.lines] or places
    where = tuple(line_at(t, *place) for place in places[:3])
    found = []
    for phase, title in TITLES.items():
        share, times = shares.get(phase, 0.0), run.phase(phase)
        if model is not None and phase == "inference":
            share = min(share, model.share)
        if share < MIN_ROLLOUT_SHARE or 2 * (times > 0).mean() < 1 or not _runs_a_model(t, phase):
            continue
        median_ms, rest_ms = np.median(times) / 1e6, np.median(run.took_ns - times) / 1e6
        text = (
            f"{percent(share, 0)} of the time of {run.num} watched steps is before the first backward pass with "
            f"gradients off: {median_ms:,.1f} ms in the median step, and {rest_ms:,.1f} ms are the rest."
        )
        found.append(
            Finding(
                rule=META.id,
                title=title,
                lost_ns=share * mean_ns,
                share=share,
                count=int((times > 0).sum()),
                total_ns=int(times.sum()),
                median_ns=int(np.median(times)),
                evidence=(text,),
                where=where,
                facts={"phase": phase},
            )
        )
    return found


class _Model(NamedTuple):
    """What the data flow shows of models without gradients."""

    share: float  # of the recorded steps, with the Python between two of its operators
    lines: frozenset[tuple[str, int]]  # that it is called through


def _model_without_gradients(t: Tables) -> _Model | None:
    """Return what of a step is a model without gradients; None without a data flow.

    Averages of weights, metrics and preprocessing are outside of modules, and multiply no matrices.
    """
    flow = t.flow
    if flow is None or not shows_values(t):
        return None
    every = [(i, one) for i, one in enumerate(flow.found.graph.operators) if one.phase != "backward"]
    if all(one.sequence_nr < 0 for _, one in every):
        return None
    mine = [
        (i, one) for i, one in every if one.sequence_nr < 0 and (one.module or HEAVY.match(one.name.partition(".")[0]))
    ]
    start, end = t.steps.window
    time = total(intersect(flow.span_of(t, [i for i, _ in mine]), span(start, end)))
    return _Model(time / (end - start), frozenset((frame.file, frame.line) for _, one in mine for frame in one.stack))


def _runs_a_model(t: Tables, phase: str) -> bool:
    """Return whether a model runs there, and in one interval again and again, as far as operators show it.

    With gradients on torch numbers each operator that has one; what a backward pass calls itself does not count.

    A policy may be called with gradients on, and only its draws have none. Where half of it repeats others, or computes
    a growing prefix anew, another rule names the cause.
    """
    named, growing, flow = t.named, t.growing_calls, t.flow
    events = named.trace.events
    rows = named.in_window(host_rows(named.trace, named.main, Kind.OP))
    if not (events.sequence[rows] >= 0).any():
        return True
    outer = outermost(named.trace, rows)
    is_heavy = np.array([HEAVY.match(name) is not None for name in named.trace.names], bool)
    heavy = outer[is_heavy[events.name[outer]]]
    for apart in (named.updates, named.covering(named.calls(BACKWARD, Kind.OP, Kind.ANNOTATION))):
        heavy = heavy[~contains(apart, events.start[heavy])]
    mine = heavy[events.sequence[heavy] < 0]
    # Per step: operators that Python calls with gradients off, the outermost modules that they are in, and all others.
    operators = len(mine) / named.steps.num
    modules, all_modules = (len(_outermost_modules(named, each)) / named.steps.num for each in (mine, heavy))
    of_others = growing.num / max(modules, 1.0) if growing is not None else 0.0
    if flow is not None and t.capture.dataflow is not None:
        again = (one for one in flow.found.computed_again if one.kind == "repeated" and not one.with_gradients)
        names = (t.capture.dataflow.operators[i].name.partition(".")[0] for one in again for i in one.work.operators)
        of_others += sum(HEAVY.match(name) is not None for name in names) / max(operators, 1.0)
    is_rollout = phase == "rollout"
    num = all_modules if is_rollout else modules
    by_operators = operators > 0 and (is_rollout or not modules)
    return of_others < 0.5 and (by_operators or num >= MIN_MODEL_CALLS)
