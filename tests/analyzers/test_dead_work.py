"""dead-work: operators whose results nothing uses. Times in ns."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import META, dead_work
from diagnose.analyzers.common.avoidable import IN_LONG_STEP
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.capture import CaptureInfo
from diagnose.model.intervals import total
from diagnose.model.records import UnreadRecord
from diagnose.pipeline.find import build_tables
from diagnose.replay.build import graph_of
from diagnose.replay.transforms import remove_cause
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, steps, tables
from tests.dataflow.table import Table
from tests.dataflow.test_liveness import convolution_backward


def with_metric(t):
    out = t.op("mm", t.value(4, 4), line=2, ns=200)
    t.op("std", out, line=3, ns=200)
    return t.op("sum", out, line=4, ns=200)


def test_a_metric_nobody_reads_costs_what_the_window_shows(recording):
    t = tables(recording, steps(with_metric))
    (finding,) = dead_work.find(t)
    assert finding.lost_ns == 100_000
    assert finding.evidence[-1] == "No recorded step reads what line 3 of train.py makes."
    assert [(place.file, place.line) for place in finding.where] == [("train.py", 3)]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["compute-less-often"]


def test_on_a_device_its_kernels_count(recording):
    t = tables(recording, steps(with_metric), devices=GPU)
    (finding,) = dead_work.find(t)
    assert finding.lost_ns == 75_000 + 30_000  # the kernel, and the gap before it in which the host issues it
    assert len(finding.tasks) == 2


def test_a_replay_without_it_calls_it_no_more(recording):
    t = tables(recording, steps(with_metric), devices=GPU)
    (finding,) = dead_work.find(t)
    graph = graph_of(t)
    without = remove_cause(t, finding, META["dead-work"].cause, 1.0)(graph)
    gone = float((graph.duration - without.duration)[~graph.is_task].sum())
    assert gone == pytest.approx(total(finding.without.host))
    assert gone >= 2 * 90_000  # of the two calls of 100 µs, what lies in the window


def test_of_a_convolution_backward_the_sums_of_its_bias_go_whole(recording):
    def step(t):
        x = t.op("mm", t.value(4, 4), line=2)
        start = t.op("ones_like", x, line=3, phase="backward")
        to_input, _ = convolution_backward(t, start, line=33, at=(2,))
        return to_input

    t = tables(recording, steps(step), devices=GPU, calls="aten::sum")
    (finding,) = dead_work.find(t)
    assert finding.total_ns == 2 * (75_000 + 40_000)
    assert finding.lost_ns == pytest.approx(75_000 / 2 + 40_000)


def test_operators_that_the_window_has_otherwise_are_not_joined(recording):
    assert dead_work.find(tables(recording, steps(with_metric), without="aten::std")) == []


def test_a_capture_without_a_data_flow_has_no_finding(recording):
    t = tables(recording, steps(with_metric))
    without = replace(t.capture, dataflow=None)
    assert dead_work.find(build_tables(without, without.trace)) == []


def test_a_term_that_is_multiplied_by_zero_is_left_out_while_its_coefficient_is_zero(recording):
    def step(t):
        out = t.op("mm", t.value(4, 4), line=2, ns=200)
        term = t.op("mean", t.op("exp", out, line=3, ns=200), shape=(), line=4)
        small = t.op("mul", term, shape=(), line=4, attributes="other=0.0", facts={"zeros": 1.0})
        return t.op("add", t.op("sum", out, shape=(), line=5), small, shape=(), line=4)

    (finding,) = dead_work.find(t := tables(recording, steps(step)))
    assert finding.title == "Operators compute a term that is multiplied by zero"
    assert finding.evidence[-1] == "What line 3 of train.py computes is multiplied by zero at line 4 of train.py."
    assert [place.line for place in finding.where] == [4, 3]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["skip-zero-term"]


def test_gradients_that_stay_may_be_used_by_a_step_that_was_not_recorded(recording):
    t = Table()
    weight, total_of = t.value(4, 4, role="parameter"), t.value(4, 4, role="gradient")
    for t.step in range(2):
        facts = {"into": total_of, "phase": "backward", "facts": {"role": "gradient"}}
        total_of = t.op("add_.Tensor", t.value(4, 4), line=2, **facts)
        weight = t.update(weight, t.value(4, 4))
    t.roots.add(total_of.value)
    (finding,) = dead_work.find(tables(recording, t))
    assert finding.confidence == "low"
    assert finding.doubt == "the gradients stay in `.grad`, and a step that was not recorded may use them"


def test_a_learning_rate_of_zero_asks_for_frozen_parameters(recording):
    def step(t):
        weight = next((v for v in t.values if v.name == "base.0.weight"), None)
        low = t.value(4, 4, role="parameter", name="base.0.weight") if weight is None else t.low
        t.held = {t.values[low.value].storage}
        out = t.op("mm", t.value(4, 4), low, line=2)
        start = t.op("ones_like", out, line=8, phase="backward")
        facts = {"role": "gradient", "name": "base.0.weight"}
        gradient = t.op("mm", start, line=2, phase="backward", forward=len(t.operators) - 2, facts=facts)
        t.low = t.op("add_", gradient, into=low, phase="optimizer", facts={"name": "base.0.weight"}, line=9)
        return out

    (finding,) = dead_work.find(t := tables(recording, steps(step)))
    assert finding.title == "The backward pass computes gradients of parameters with a learning rate of 0"
    assert (
        finding.evidence[-1] == "Line 8 of train.py computes gradients of base.0.weight, and their learning rate is 0."
    )
    (first, *_) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert first.title == "Freeze base.0 with requires_grad_(False): their learning rate is 0"


def decoded(t):
    out = t.op("mm", t.value(4, 4), line=2, ns=200)
    best, most = t.op("argmax", out, line=7, ns=200), t.op("topk", out, line=7, ns=200)
    t.read_on_host(best)
    t.read_on_host(most)
    return t.op("sum", out, line=4, ns=200)


def unread(**fields):
    record = {"chains": [[["train.py", 7]]], "first": [["train.py", 7]], "names": ["best"], "steps": 10}
    return {"unread": [{**record, "in_steps": 10, "made": 10, **fields}]}


def test_what_few_steps_read_costs_its_share_of_all_that_the_line_does(recording):
    t = tables(recording, steps(decoded), noted=unread(read=1, readers=[["train.py", 9]]))
    (finding,) = dead_work.find(t)
    assert finding.title == "A result is made more often than it is read"
    assert finding.lost_ns == pytest.approx(0.9 * 210_000)  # two operators, and what passes between them
    assert (
        finding.evidence[-1]
        == "Line 7 of train.py makes `best` 10 times in 10 steps, and line 9 reads 1 of the results."
    )
    assert [place.line for place in finding.where] == [7]
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert change.title == "Compute `best` at train.py:7 only in the branch that reads it, at line 9"


def test_what_each_step_reads_costs_nothing(recording):
    assert dead_work.find(tables(recording, steps(decoded), noted=unread(read=10, readers=[["train.py", 9]]))) == []


def test_what_an_evaluation_makes_in_each_turn_costs_its_part_of_the_run(recording, run_steps):
    t = tables(recording, steps(with_metric))
    run = run_steps([10.0] * 40)
    path = ((("train.py", 30, "evaluate"), ("train.py", 50, "main")), (("train.py", 40, "main"),))
    at_ns = run.began_ns + 1_000_000
    run = replace(run, paths=path, sampled_ns=at_ns, path=np.repeat(np.array([0, 1], np.int32), [10, 30]))
    record = UnreadRecord(
        chains=((("train.py", 30),),), first=(("train.py", 30),), names=("auc",), readers=(("train.py", 33),),
        after=True, made=40, read=1, in_steps=1, steps=10,
    )  # fmt: skip
    capture = replace(t.capture, run=run, info=CaptureInfo(unread=(record,)))
    found = [one for one in dead_work.find(build_tables(capture, capture.trace)) if one.share]
    (finding,) = found
    assert finding.share == pytest.approx(0.25 * 39 / 40)
    assert finding.facts[IN_LONG_STEP]
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert change.title == "Compute `auc` at train.py:30 once, after the loop"
