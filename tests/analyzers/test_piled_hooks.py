"""piled-hooks: a line registers hooks again and again. Steps of 10 ms, of which every tenth takes 40."""

from dataclasses import replace

import pytest

from diagnose.analyzers import piled_hooks
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.capture import CaptureInfo
from diagnose.model.dataflow import Frame
from diagnose.model.records import HookRecord
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables
from tests.dataflow.table import FILE, Table

MS = 1_000_000
HOOKS = HookRecord(
    file=FILE, line=30, function="attach", num=8, modules=2, steps=4, hook_file=FILE, hook_name="hook",
    hook_lines=(20, 22),
)  # fmt: skip
IN_HOOK = (Frame(FILE, 21, "hook"), Frame(FILE, 5, "forward"))


def hooked(t, num=4):
    made = t.op("mm", t.value(4, 4), line=5, ns=2 * MS)
    kept = [t.op("clone", made, stack=IN_HOOK, ns=MS, module="stem") for _ in range(num)]
    t.roots |= {each.value for each in kept}
    return kept


@pytest.fixture
def hook_tables(recording, run_steps):
    def make(usual, hooks=(HOOKS,), long_step=None):
        run = run_steps([40.0 if i % 10 == 9 else 10.0 for i in range(40)])
        t = tables(recording, steps(usual))
        info = CaptureInfo(hooks=hooks, long_step_every=10 if long_step else 0)
        flow = long_step.graph().flow if long_step else None
        capture = replace(t.capture, run=run, info=info, long_step=flow)
        return build_tables(capture, capture.trace)

    return make


def test_what_hooks_of_a_module_compute_again_is_named_with_both_lines(hook_tables):
    t = hook_tables(lambda t: hooked(t)[0])
    (finding,) = piled_hooks.find(t)
    assert finding.lost_ns == pytest.approx(3 * MS)
    assert finding.evidence == (
        "8 hooks are registered of 2 modules, in 4 steps of the run: line 30 of train.py registers them.",
        "75 % of what the hook at line 20 of train.py computes in a step is the same again: 3.00 ms.",
    )
    assert [place.line for place in finding.where] == [30, 20]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["remove-hooks"]


def test_a_report_of_what_hooks_have_kept_counts_as_well(hook_tables):
    t = Table()
    t.read_on_host(hooked(t)[0])
    t.step = 1
    kept = hooked(t)
    t.read_on_host(t.op("cat", *kept, line=50, ns=20 * MS))
    (finding,) = piled_hooks.find(hook_tables(lambda t: hooked(t)[0], long_step=t))
    assert finding.lost_ns == pytest.approx(3 * MS + 0.75 * 20 * MS / 10)
    assert finding.evidence[-1] == "1 step in 10 computes with what they have kept: 1.50 ms of the mean step."


def test_one_hook_of_each_module_costs_nothing(hook_tables):
    assert piled_hooks.find(hook_tables(lambda t: hooked(t, num=1)[0])) == []


def test_hooks_of_other_functions_are_not_counted(hook_tables):
    other = HookRecord(file=FILE, line=31, num=4, modules=1, steps=4, hook_file=FILE, hook_name="watch")
    assert piled_hooks.find(hook_tables(lambda t: hooked(t)[0], hooks=(other,))) == []


def test_without_hooks_nothing_is_named(hook_tables):
    assert piled_hooks.find(hook_tables(lambda t: hooked(t)[0], hooks=())) == []
