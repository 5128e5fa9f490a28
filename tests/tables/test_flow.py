"""The data flow joined to the timing window: by name and number, else by the neighbours."""

from diagnose.tables.flow import flow_of
from tests.analyzers.flow_tables import tables
from tests.dataflow.table import Table


def four_operators() -> Table:
    """Return two steps of exp, add, log, add."""
    t = Table()
    for t.step in range(2):
        for name in ("exp", "add", "log", "add"):
            t.read_on_host(t.op(name, t.value(4), ns=100)) if name == "log" else t.op(name, t.value(4), ns=100)
    return t


def test_operators_are_the_outermost_of_their_names(recording):
    t = tables(recording, four_operators())
    flow = flow_of(t)
    assert [len(rows) for rows in flow.rows] == [2] * 10
    (first, second) = (t.trace.events.start[flow.rows[1]].tolist(), t.trace.events.start[flow.rows[4]].tolist())
    assert (first, second) == ([120_000, 1_120_000], [450_000, 1_450_000])


def test_of_a_name_with_other_numbers_those_between_the_same_neighbours_are_known(recording):
    t = tables(recording, four_operators(), extra=("aten::exp", "aten::add"))
    rows = flow_of(t).rows
    assert [len(rows[i]) for i in range(5)] == [0, 0, 2, 2, 2]  # the second add is between item and the end
