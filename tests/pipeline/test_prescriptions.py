"""Which changes are shown together."""

from dataclasses import replace

import pytest

from diagnose.model.diagnosis import Finding, Forecast, Prescription, Waterfall
from diagnose.pipeline.find import one_compilation, worth_showing


def change(rule, name, most):
    return Prescription(rule, name, name, "", "", (0.0, most), 1000.0 - most, "same numbers")


FUSE = change("kernel-latency", "fuse-kernels", 100.0)
GRAPHS = change("launch-bound", "compile-graphs", 300.0)
MODEL = change("unfused-elementwise", "compile-model", 200.0)
WORKERS = change("data-stall", "more-workers", 250.0)


def forecast(*names):
    """Return a waterfall of these changes."""
    chain = [Forecast(names[:i], "", 1000.0 - i, 1000.0 - i, 1000.0 - i) for i in range(len(names) + 1)]
    return Waterfall(tuple(chain), "", {})


def test_one_change_that_compiles_the_model_stays_and_stands_for_the_others():
    shown, instead = one_compilation((MODEL, GRAPHS, WORKERS, FUSE), None)
    assert shown == (GRAPHS, WORKERS)
    assert [(p.rule, p.id, p.saves_ns) for p in instead] == [
        ("unfused-elementwise", "compile-graphs", (0.0, 0.0)),
        ("kernel-latency", "compile-graphs", (0.0, 0.0)),
    ]


@pytest.mark.parametrize(("other", "kept"), [("load-in-process", False), ("save-in-background", True)])
def test_workers_that_go_need_not_be_kept(other, kept):
    keeping = replace(change("periodic-stall", "keep-workers", 400.0), predicted_step_ns=None, mean_step_ns=2000.0)
    found = [Finding("periodic-stall", "", 500.0), Finding("data-stall", "", 500.0)]
    shown = worth_showing(found, (keeping, change("data-stall", other, 250.0)), None, 1000.0)
    assert [p.id for p in shown] == [*(["keep-workers"] if kept else []), other]


def test_it_is_that_of_the_forecast():
    shown, _ = one_compilation((GRAPHS, MODEL), forecast("compile-model"))
    assert shown == (MODEL,)


def test_one_alone_stays_and_so_does_what_keeps_a_compiled_model_from_compiling_again():
    again = replace(MODEL, rule="recompilation", id="stop-recompiling")
    assert one_compilation((GRAPHS, WORKERS, again), None) == ((GRAPHS, WORKERS, again), ())
