"""The data flow joined to the timing window: by name and number, else by the neighbours."""

from diagnose.tables.flow import flow_of, shows_values
from tests.analyzers.flow_tables import GPU, tables
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
    assert shows_values(t)


def test_of_a_name_with_other_numbers_those_between_the_same_neighbours_are_known(recording):
    t = tables(recording, four_operators(), extra=("aten::exp", "aten::add"))
    rows = flow_of(t).rows
    assert [len(rows[i]) for i in range(5)] == [0, 0, 2, 2, 2]  # the second add is between item and the end


def test_a_flow_that_hardly_fits_the_window_shows_nothing(recording):
    assert not shows_values(tables(recording, four_operators(), without="aten::add"))


def test_where_a_line_runs_more_often_in_each_step_all_that_is_between_the_others_is_its_own(recording):
    t = Table()
    for t.step in range(2):
        x = t.op("mul", t.value(4), line=3)
        for _ in range(2 + t.step):
            x = t.op("mul", x, line=4, phase="backward")
        t.read_on_host(t.op("mul", x, line=5), line=6)
    rows = flow_of(tables(recording, t, extra=("aten::mul",))).rows  # five of them in the first step, six in the second
    assert [len(each) for each in rows[5:10]] == [2, 3, 2, 2, 2]
    last = [each[-1] for each in rows[5:10]]
    assert (min(last), max(last)) == (last[0], last[-1])


def test_an_implementation_that_autograd_calls_itself_is_the_operator(recording):
    t = Table()
    for t.step in range(2):
        t.read_on_host(t.op("index_put", t.value(4), line=7, phase="backward"))
    extra = ("aten::_index_put_impl_",)
    found = flow_of(tables(recording, t, without="aten::index_put", extra=extra))
    assert [len(rows) for rows in found.rows] == [2, 2, 2, 2]
    assert {found.lines[row].line for row in found.rows[0]} == {7}


def test_what_the_host_calls_before_the_device_begins_is_of_the_first_step(recording):
    flow = flow_of(tables(recording, four_operators(), devices=GPU, late=900))
    assert [len(rows) for rows in flow.rows] == [2] * 10
