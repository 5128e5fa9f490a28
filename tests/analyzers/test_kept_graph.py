"""kept-graph: a backward pass that goes back through earlier steps. Times in ns."""

from diagnose.analyzers import kept_graph
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, tables
from tests.dataflow.table import Table


def carried(*, kept: bool = True) -> Table:
    """Return two steps of a forward operator, its backward operator and, if kept, that of the step before."""
    t = Table()
    state, before = t.value(4, role="state"), 7
    for t.step in range(2):
        forward, number = len(t.operators), 10 + t.step
        state = t.op("tanh", state, line=3, sequence_nr=number)
        gradient = t.op("tanh_backward", state, line=3, phase="backward", forward=forward, sequence_nr=number)
        if kept:
            gradient = t.op("tanh_backward", gradient, line=3, phase="backward", sequence_nr=before)
        t.read_on_host(gradient, line=5)
        before = number
    return t


def test_functions_of_earlier_steps_are_lost_with_the_line_that_carries_their_graph(recording):
    t = tables(recording, carried())
    (finding,) = kept_graph.find(t)
    assert finding.lost_ns == 100_000
    assert finding.evidence[-1] == (
        "1 of 2 operators of the backward pass are of a forward that ran in earlier steps; line 3 of train.py reads "
        "what carries their graph."
    )
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert change.id == "detach-state"
    assert "state.detach()" in change.after


def test_beside_a_device_it_is_their_kernels_and_the_idle_time_in_which_the_host_issues_them(recording):
    (finding,) = kept_graph.find(tables(recording, carried(), devices=GPU))
    assert (len(finding.tasks), finding.lost_ns) == (2, 105_000)


def test_a_backward_pass_of_its_own_step_is_not(recording):
    assert kept_graph.find(tables(recording, carried(kept=False))) == []
