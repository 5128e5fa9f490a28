"""host-round-trip: copies that need not come from the host, and elements that Python reads one by one."""

from diagnose.analyzers import host_round_trip
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, steps, tables


def by_element(t):
    lengths = t.value(8)
    for _ in range(8):
        t.op("_local_scalar_dense", lengths, line=5, reads_host=True, writes=())
    return lengths


def test_reads_of_a_loop_cost_the_calls_of_all_turns_but_one(recording):
    flow = steps(by_element)
    flow.op("exp", flow.value(8))  # what the cheapest operator takes
    t = tables(recording, flow)
    (finding,) = host_round_trip.find(t)
    assert finding.lost_ns == 7 * 100_000 + 7 * 10_000  # of eight calls, and the Python between them
    assert [place.line for place in finding.where] == [5]
    assert finding.evidence[-1] == ("Python reads 8 elements one by one at line 5 of train.py.")
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["vectorise-loop"]


def test_what_is_made_on_the_host_and_copied_is_named(recording):
    def copied(t):
        mask = t.op("arange", shape=(64,), line=3)
        return t.op("_to_copy", mask, line=4, facts={"device": "cuda:0"})

    (finding,) = host_round_trip.find(tables(recording, steps(copied), devices=GPU))
    assert [place.line for place in finding.where] == [3, 4]


def test_one_number_that_is_read_is_not(recording):
    assert host_round_trip.find(tables(recording, steps(lambda t: t.op("sum", t.value(8))))) == []
