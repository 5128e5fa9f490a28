"""Which loop of the script's the sampler saw most of a function's lines in, and that launch-bound names it."""

from dataclasses import replace

import pytest

from diagnose.analyzers import launch_bound
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.dataflow import Frame
from diagnose.pipeline.find import build_tables
from diagnose.reports.format import place
from diagnose.tables.issuers import SampledLoop, sampled_loop
from tests.dataflow.table import Table

FILE, FUNCTION = "loss.py", "forward"


def looping(recording, seen, loops, flow=None):
    """Return the tables of a step without a device of tiny operators, in which these lines are sampled so often."""
    r = recording(devices=())
    r.step(1, 0, 4000)
    for i in range(200):
        r.op("aten::mul", 19 * i, 19 * i + 12)
    r.op("aten::mm", 3900, 4000)
    lines = [line for line, num in seen.items() for _ in range(num)]
    for i, line in enumerate(lines):
        r.sample(10 + 3800 * i / len(lines), (FILE, line, FUNCTION))
    r.lines = {(FILE, 23): "for i in range(len(rows)):", (FILE, 29): "loss.backward()", (FILE, 31): "scaler.step(opt)"}
    r.lines[FILE, 17] = "observations, rewards, ends, infos = self.envs.step(actions)"
    capture = replace(r.capture(), loops={FILE: loops}, dataflow=flow)
    return build_tables(capture, capture.trace)


@pytest.mark.parametrize("most", [12, 23, 24, 25, 28])
def test_the_loop_is_named_whichever_of_its_lines_most_samples_are_at(recording, most):
    t = looping(recording, {12: 4, 23: 5, 24: 5, 25: 5, 26: 5, 28: 5} | {most: 9}, ((23, 28),))
    (finding,) = launch_bound.find(t)
    first = finding.where[0]
    assert (first.file, first.line, first.function, first.code) == (FILE, 23, FUNCTION, "for i in range(len(rows)):")
    assert (first.last_line, place(first)) == (28, f"{FILE}:23–28 in {FUNCTION}")
    assert all(w.line != 23 for w in finding.where[1:])
    share = {12: 74, 23: 88, 24: 88, 25: 88, 28: 88}[most]
    assert f"{share} % of the samples of {FUNCTION} are in the loop of {FILE}, lines 23 to 28." in finding.evidence
    advised = {p.id: p for p in prescribe(finding, t.steps.step_ns)}["vectorise-loop"]
    assert advised.title.startswith(f"Vectorise the loop at {FILE}:23 (")


def test_where_the_source_is_not_at_hand_the_line_with_most_samples_is_named(recording):
    (finding,) = launch_bound.find(looping(recording, {24: 5, 25: 9, 26: 5}, ()))
    assert finding.where[0].line == 25


def data_flow(lines):
    """Return a data flow of the same operators, called one after the other from these lines."""
    table = Table()
    for table.step in range(2):
        value = table.value(4)
        for i in range(200):
            value = table.op("mul", value if i else table.value(4))
        table.read_on_host(table.op("mm", value))
    flow = table.graph().flow
    placed = zip(flow.operators, lines * 2, strict=True)
    return replace(flow, operators=tuple(one._replace(stack=(Frame(FILE, line, FUNCTION),)) for one, line in placed))


@pytest.mark.parametrize(
    ("lines", "is_loop"), [([*[25] * 8, *range(100, 294)], True), ([*range(17, 25), *range(100, 294)], False)]
)
def test_what_the_data_flow_shows_to_be_no_loop_is_named_as_none(recording, lines, is_loop):
    t = looping(recording, {24: 5, 25: 9, 26: 5}, ((23, 28),), data_flow(lines))
    (finding,) = launch_bound.find(t)
    assert ("issuer" in finding.facts) == is_loop


@pytest.mark.parametrize(
    ("seen", "loop"),
    [
        ({11: 2, 13: 9, 14: 9}, SampledLoop(12, 14, 0.9)),  # the innermost that has half of them
        ({11: 9, 13: 5, 17: 6}, SampledLoop(10, 18, 1.0)),  # two inside it, neither of which has
        # The lines of a backward pass and of an optimizer only repeat what others called; an environment's does not.
        ({11: 9, 13: 5, 29: 40, 31: 40}, SampledLoop(10, 18, 1.0)),
        ({11: 2, 13: 3, 17: 9}, SampledLoop(16, 18, 9 / 14)),
        ({3: 9, 13: 5}, None),
    ],
)
def test_the_innermost_loop_with_most_of_the_samples(recording, seen, loop):
    t = looping(recording, seen, ((10, 18), (12, 14), (16, 18)))
    assert sampled_loop(t, FILE, FUNCTION) == (loop and loop._replace(share=pytest.approx(loop.share)))
