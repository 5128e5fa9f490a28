"""The data flow joined to the timing window: by name and number, else by the neighbours."""

from dataclasses import replace

from diagnose.analyzers import HOST_RULES
from diagnose.pipeline.find import applied_rules, build_tables
from diagnose.tables.flow import flow_of, shows_values
from tests.analyzers.flow_tables import tables
from tests.analyzers.test_one_hot_product import CONVERSION, PRODUCT, SOURCE
from tests.analyzers.test_one_hot_product import tables as one_hot_tables
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


def test_rules_that_guess_are_applied_only_without_a_data_flow(recording):
    guessing = {rule.META.id for rule in HOST_RULES if rule.META.without_dataflow}
    t = tables(recording, four_operators())
    plain = replace(t.capture, dataflow=None)
    assert "one-hot-product" in guessing
    assert guessing <= {rule.META.id for rule in applied_rules(build_tables(plain, plain.trace))}
    assert guessing.isdisjoint(rule.META.id for rule in applied_rules(t))


def test_a_rule_that_guesses_claims_no_time_of_a_joined_step(recording):
    plain = one_hot_tables(recording, SOURCE, CONVERSION, PRODUCT)
    table = Table()
    for table.step in range(2):
        for name in ("one_hot", "to", "linear", "ones_like"):
            table.roots.add(table.op(name, table.value(4), ns=100).value)
    joined = replace(plain.capture, dataflow=table.graph().flow)
    assert plain.causes.totals()["one-hot-product"] > 0
    assert "one-hot-product" not in build_tables(joined, joined.trace).causes.totals()
