"""repeated-call: calls of a module that the capture found to be the same. Times in µs."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import repeated_call
from diagnose.model.capture import RunSteps
from diagnose.pipeline.find import build_tables

FUNCTION = "autograd::engine::evaluate_function: MmBackward0"
EPOCH_US = 1_700_000_000_000_000


def called(recording, *, backward=(), devices=(), steps=2):
    """Return steps of 1000 µs with calls of a module at 0 and 300, the second one longer; and the capture's record.

    A call leaves one function behind; those of the calls ``backward`` run at 700 and 800.
    """
    r = recording(devices=devices) if devices == () else recording()
    begins, ends = [], []
    for step in range(steps):
        at, number = 1000 * step, 10 * step
        r.step(step + 1, at, at + 1000)
        for call, took in ((0, 100), (1, 200)):
            begin = at + 300 * call
            r.frame("train.py(7): targets", begin, begin + took)
            r.op("aten::mm", begin + 10, begin + took - 10, sequence=number + call)
            if devices != ():
                r.kernel("gemm", begin + 20, begin + took, launched=(begin + 11, begin + 15))
            begins.append(1000 * (EPOCH_US + begin))
            ends.append(1000 * (EPOCH_US + begin + took))
        r.op("aten::sum", at + 600, at + 690, sequence=number + 2)
        for call in backward:
            begin = at + 700 + 100 * call
            r.op(FUNCTION, begin, begin + 90)
            r.op("MmBackward0", begin + 5, begin + 85, sequence=number + call)
    r.with_info(
        repeats=[
            {"module": "Critic", "began_ns": begins[i : i + 2], "ended_ns": ends[i : i + 2]}
            for i in range(0, 2 * steps, 2)
        ]
    )
    return r


def analysed(r):
    """Return the tables of a capture whose windows hold the same."""
    capture = r.capture(attribution=r)
    return build_tables(capture, capture.trace)


def found_in(r):
    found = repeated_call.find(analysed(r))
    assert len(found) <= 1
    return found[0] if found else None


def test_of_calls_that_are_the_same_the_longest_is_needed(recording):
    finding = found_in(called(recording))
    assert finding.lost_ns == 80_000  # the operator of the first call
    assert finding.title == "Critic computes the same again: equal inputs, unchanged weights"
    assert finding.evidence[1].startswith(
        "Critic is called 2 times a step with inputs and weights that an earlier call had; 1 of the calls"
    )


def test_with_a_call_goes_what_the_backward_pass_computes_of_it(recording):
    finding = found_in(called(recording, backward=(0, 1)))
    assert finding.lost_ns == 80_000 + 80_000
    assert finding.facts["with_gradients"] is True


def test_of_calls_that_are_the_same_in_every_step_none_is_needed(recording):
    r = called(recording)
    records = r.info.repeats
    both = {"module": "Critic", "began_ns": [], "ended_ns": []}
    for each in records:
        both["began_ns"] += each.began_ns
        both["ended_ns"] += each.ended_ns
    r.with_info(repeats=[both])
    assert found_in(r).lost_ns == 80_000 + 180_000


def test_beside_a_device_it_is_their_kernels_and_the_answer_is_less_sure(recording):
    finding = found_in(called(recording, devices="one"))
    assert len(finding.tasks) == 2  # 80 µs of each step
    assert finding.confidence == "medium"
    assert finding.lost_ns >= 80_000


def between(r, *, backward=None, update=False, steps=2):
    """Put between the two calls of each step the backward pass of a call, or an optimizer's step."""
    for step in range(steps):
        at, number = 1000 * step, 10 * step
        if backward is not None:
            r.op(FUNCTION, at + 210, at + 290)
            r.op("MmBackward0", at + 215, at + 285, sequence=number + backward)
        if update:
            r.annotation("Optimizer.step#Adam.step", at + 210, at + 290)
    return r


def test_a_result_whose_backward_pass_has_freed_its_graph_is_gone(recording):
    assert found_in(between(called(recording, backward=(1,)), backward=0)) is None


def test_a_result_with_gradients_is_gone_with_an_update_of_any_optimizer(recording):
    assert found_in(called(recording, backward=(0, 1))) is not None
    assert found_in(between(called(recording, backward=(0, 1)), update=True)) is None


def test_values_without_gradients_stay_whatever_is_updated(recording):
    assert found_in(between(called(recording), update=True)).lost_ns == 80_000


def test_a_result_without_gradients_stands_for_none_with_them(recording):
    assert found_in(called(recording, backward=(1,))) is None


@pytest.mark.parametrize(("update", "lost_ns"), [(False, 180_000), (True, None)])
def test_the_values_of_a_result_with_gradients_serve_a_metric_until_an_update(recording, update, lost_ns):
    r = between(called(recording), backward=0, update=update)
    found = found_in(r)
    assert (found and found.lost_ns) == lost_ns
    assert found is None or found.facts["with_gradients"] is False


def test_gradients_with_gradients_of_their_own_free_nothing(recording):
    r = recording(devices=())
    began, ended = [], []
    for step in (0, 1):
        at, number = 1000 * step, 10 * step
        r.step(step + 1, at, at + 1000)
        for call in (0, 1):  # as a derivative that each term of a loss takes of a call of its own
            begin, own = at + 300 * call, number + 3 * call
            r.op("aten::mm", begin + 10, begin + 90, sequence=own)
            r.op(FUNCTION, begin + 100, begin + 190)
            r.op("MmBackward0", begin + 105, begin + 185, sequence=own)
            r.op("aten::mul", begin + 110, begin + 180, sequence=own + 1)  # gradients are on
            r.op("aten::sum", begin + 200, begin + 210, sequence=own + 2)
            began.append(1000 * (EPOCH_US + begin))
            ended.append(1000 * (EPOCH_US + begin + 95))
        r.op("MulBackward0", at + 700, at + 790, sequence=number + 1)
    r.with_info(repeats=[{"module": "Net", "began_ns": began[i : i + 2], "ended_ns": ended[i : i + 2]} for i in (0, 2)])
    assert found_in(r).facts["with_gradients"] is True


def test_of_steps_that_have_the_same_in_common_a_result_with_gradients_is_none(recording):
    r = called(recording, backward=(0, 1))
    began = [at for each in r.info.repeats for at in each.began_ns[:1]]
    ended = [at for each in r.info.repeats for at in each.ended_ns[:1]]
    r.with_info(repeats=[{"module": "Critic", "began_ns": began, "ended_ns": ended}])
    assert found_in(r) is None


def test_the_line_is_that_of_the_call_that_computes_it_again(recording):
    r = called(recording)
    places = [["", 0, ""], ["train.py", 9, "targets"]]
    r.with_info(
        repeats=[
            {"module": e.module, "began_ns": e.began_ns, "ended_ns": e.ended_ns, "places": places}
            for e in r.info.repeats
        ]
    )
    r.lines = {("train.py", 9): "again = critic(x)"}
    finding = found_in(r)
    assert (finding.where[0].line, finding.where[0].code) == (9, "again = critic(x)")


def test_where_no_line_was_noted_an_optimizers_step_is_not_taken_for_it(recording):
    r = called(recording)
    r.lines = {("train.py", 12): "optimizer.step()", ("train.py", 9): "again = critic(x)"}
    capture = r.capture(attribution=r)
    paths = ((("train.py", 12, "targets"),), (("train.py", 9, "targets"),))
    seen = np.array([0, 0, 0, 1], np.int32)
    run = RunSteps(np.array([0]), np.array([1]), np.zeros(1, np.int8), {}, paths, np.arange(4), seen)
    t = build_tables(replace(capture, run=run), capture.trace)
    (finding,) = repeated_call.find(t)
    assert finding.where[0].line == 9


@pytest.mark.parametrize("repeats", [[], [{"module": "Critic", "began_ns": [1, 5], "ended_ns": [2, 6]}]])
def test_calls_that_the_capture_did_not_find_to_be_the_same(recording, repeats):
    r = called(recording)
    r.with_info(repeats=repeats)
    assert found_in(r) is None


def test_what_is_done_about_it(recording):
    from diagnose.changes.common.prescribe import prescribe
    from diagnose.tables.program import program_of

    t = analysed(called(recording, backward=(0, 1)))
    (change,) = prescribe(found_in(called(recording, backward=(0, 1))), t.steps.step_ns, program_of(t))
    assert change.id == "reuse-result"
    assert change.title == "Keep the result of Critic instead of computing it again (train.py:7)"
    assert change.safety.startswith("may change the numbers")
