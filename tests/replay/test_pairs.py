"""Before and after of the same workload, recorded by others: what the replay of the first predicts of the second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose.analyzers import META
from diagnose.pipeline.find import build_tables, find_in_rank
from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if
from diagnose.replay.build import build, step_subset
from diagnose.replay.simulate import owners, period_ns, simulate
from diagnose.replay.transforms import remove_cause
from diagnose.trace_reader import open_captures

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def found(name):
    path = next(iter(sorted(TRACES.rglob(f"{name}*.json*"))), None) if TRACES.is_dir() else None
    if path is None:
        pytest.skip(f"the recorded trace {name} is not here")
    return path


PAIRS = [
    ("kineto_rn50_nw0_a", "kineto_rn50_nw4_a"),
    pytest.param("kineto_rn50_profapi_nw0", "kineto_rn50_profapi_nw4", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_four_workers_are_predicted_to_a_tenth(before, after):
    """The later run's mean holds two steps half as long again as the others, so its median stands for it."""
    predicted = run_what_if(found(before), WhatIfRequest(workers=4)).after_ns
    (capture,) = open_captures([found(after)])
    steps = build_tables(capture, capture.trace).steps
    assert predicted == pytest.approx(float(np.median(steps.end - steps.start)), rel=0.10)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_of_a_pair_the_slower_one_is_told_what_the_faster_one_has(before, after):
    slow, fast = (analyze_rank(open_captures([found(name)])[0]) for name in (before, after))
    assert slow.prescriptions[0].id == "load-in-workers"
    assert slow.prescriptions[0].predicted_step_ns < slow.step_ns
    assert "load-in-workers" not in {p.id for p in fast.prescriptions}


@pytest.mark.parametrize(
    "name",
    [
        "kineto_rn50_nw0_a",
        "luatil_gpt_compile",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("tl_owlv2_h100", "hta_ddp_unbucketed_v100")),
    ],
)
def test_a_few_steps_say_what_all_steps_say(name):
    """Savings replayed on a subset of the steps against the same on the whole window, in shares of the step."""
    (capture,) = open_captures([found(name)])
    rank = find_in_rank(capture)
    t, findings = rank.tables, rank.findings
    part = step_subset(t)
    graphs = [(graph, owners(of, graph)) for of, graph in ((t, build(t)), (part, build(part)))]
    for finding in findings:
        change = remove_cause(t, finding, META[finding.rule].cause, 1.0)
        if change is not None:
            whole, some = (1 - step(change(graph), owner) / step(graph, owner) for graph, owner in graphs)
            assert some == pytest.approx(whole, abs=0.05), finding.rule


def step(graph, owner):
    return period_ns(graph, simulate(graph), owner)
