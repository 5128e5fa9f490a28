"""launch-bound without a device: what calling operators takes of a step."""

import pytest

from diagnose.analyzers import launch_bound
from diagnose.changes.common.applies import COMPILATION
from diagnose.model.intervals import intersect, span, total
from diagnose.reports import text
from diagnose.tables.stages import add_causes, begin, complete


def recurrent(recording, *, cells=60, each=16, module="nn.Module: Cell_0"):
    """Return a step without a device in which a loop of `forward` calls modules, each of which calls tiny operators."""
    r = recording(devices=())
    took = 20.0 * each
    r.step(1, 0, took * cells)
    for frame in ("train.py(50): <module>", "nn.Module: Tagger_0", "tagger.py(9): forward"):
        r.frame(frame, 0, took * cells)
    for i in range(cells):
        at = took * i
        r.frame(module.format(i), at, at + took - 1)
        r.frame("tagger.py(30): forward", at, at + took - 2)
        for k in range(each):
            r.op("aten::mul" if k % 3 else "aten::sigmoid", at + 20 * k, at + 20 * k + 12)
    return r


def looping(recording, num=960):
    """Return a step without a device in which one function of the script calls tiny operators."""
    r = recording(devices=())
    r.step(1, 0, 20.0 * num)
    for frame in ("train.py(50): <module>", "train.py(30): scan"):
        r.frame(frame, 0, 20.0 * num)
    for k in range(num):
        r.op("aten::mul" if k % 3 else "aten::sigmoid", 20 * k, 20 * k + 12)
    return r


def test_a_module_for_each_layer_is_no_loop_over_one(recording):
    r = recurrent(recording, module="nn.Module: Block_{}")
    assert [p.id for p in r.prescribe("launch-bound")] == ["compile-model"]
    (compiling,) = [p for p in r.diagnosis().prescriptions if p.id == "compile-model"]
    assert compiling.predicted_step_ns is None
    assert COMPILATION in compiling.needs


def nested(recording, *, steps=1, lost_core=None):
    """Return steps without a device of operators of 40 µs, in each of which four others take 9 µs; a product works."""
    r = recording(devices=())
    for step in range(steps):
        begin = 1000.0 * step
        r.step(step + 1, begin, begin + 1000)
        for i in range(10):
            at = begin + 41 * i
            r.op("MulBackward0", at, at + 40)
            for k in range(4):
                r.op("aten::mul", at + 10 * k, at + 10 * k + 9)
        r.op("aten::mul", begin + 500, begin + (900 if step == lost_core else 509))
        r.op("aten::mm", begin + 900, begin + 1000)
    return r


def test_operators_that_only_call_others_are_calls(recording):
    assert nested(recording).booked() == {"launch-bound": 509_000, "operators": 100_000, "python-stall": 391_000}


@pytest.mark.parametrize(("until", "claims"), [(290, 0), (310, 310_000)])
def test_what_other_rules_leave_of_calls_is_claimed_from_30_percent_of_the_step_on(recording, until, claims):
    t = nested(recording).tables()
    assert total(launch_bound.claim_host(t, span(0, until * 1000))) == claims


@pytest.mark.parametrize(("before", "is_named"), [(0.4, True), (0.6, False)])
def test_a_function_whose_time_other_rules_account_for_is_not_named(recording, before, is_named):
    t = looping(recording).tables()
    (start, end) = t.steps.window
    first = span(start, start + int(before * (end - start)))
    others = ("computed-again", lambda _t, left: intersect(left, first))
    rest = ("outside-operators", lambda _t, left: left)
    claims = (others, ("launch-bound", launch_bound.claim_host), rest)
    t = complete(add_causes(begin(t.capture, t.trace), claims, {}, []), [])
    (finding,) = launch_bound.find(t)
    assert ("issuer" in finding.facts) == is_named


def test_a_small_operator_that_lost_its_core_in_one_step_does_not_work(recording):
    booked = nested(recording, steps=5, lost_core=2).booked()
    assert booked["operators"] == 500_000
    assert booked["launch-bound"] == 5 * 509_000 + 391_000


@pytest.mark.parametrize(("work", "unprofiled_ms", "share"), [(100, 0.9, 0.89), (1100, 1.3, None)])
def test_what_recording_costs_does_not_change_the_cause(recording, work, unprofiled_ms, share):
    """Recording makes no operator longer that works: calls take 800 of 900 µs without it, or 200 of 1300."""
    r = recording(devices=())
    r.step(1, 0, 1900 + work)
    for i in range(100):
        r.op("aten::add", 19 * i, 19 * i + 12)
    r.op("aten::mm", 1900, 1900 + work)
    r.with_info(light_ms=(1.9 + work / 1000,) * 9, unprofiled_ms=(unprofiled_ms,) * 9)
    finding = next(f for f in r.diagnosis().findings if f.rule == "launch-bound")
    assert finding.unrecorded_share == (None if share is None else pytest.approx(share, abs=0.01))
    stated = "Without recording a step takes 900 µs, at least 89 % of it for 101 calls of operators, 7.97 µs each"
    assert any(line.startswith(stated) for line in finding.evidence) == (share is not None)


def test_without_a_device_its_label_speaks_of_no_device_that_waits(recording):
    shown = text.render(recurrent(recording).diagnosis(), width=120)
    assert "Python and dispatch around many small operators" in shown
    assert "issued slower" not in shown


def test_beside_a_device_its_label_does(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):
        r.op("aten::mul", 100 * i, 100 * i + 60)
        r.kernel("mul", 100 * i + 70, 100 * i + 75, launched=(100 * i + 50, 100 * i + 58))
    assert r.diagnosis().legends["launch-bound"].label == "operators were issued slower than they ran"


@pytest.mark.parametrize(("before", "is_known"), [([0.9] * 12, True), ([0.5, 1.3] * 6, False)])
def test_that_only_later_steps_vary_does_not_matter(recording, run_steps, before, is_known):
    """Steps before the recorded ones take 0.9 ms; then another program starts."""
    r = recording(devices=())
    r.step(1, 0, 2000)
    for i in range(100):
        r.op("aten::add", 19 * i, 19 * i + 12)
    r.op("aten::mm", 1900, 2000)
    state = [0] * 12 + [3] + [1] * 9 + [3] + [0] * 30
    r.run = run_steps([*before, 4.0, *[2.0] * 9, 4.0, *[0.9, 1.8, 2.7] * 10], state=state, backwards=[1] * len(state))
    r.with_info(light_ms=(2.0,) * 9, unprofiled_ms=tuple(before[-10:]), settled_after=2)
    finding = next(f for f in r.diagnosis().findings if f.rule == "launch-bound")
    assert (finding.unrecorded_share is not None) == is_known
