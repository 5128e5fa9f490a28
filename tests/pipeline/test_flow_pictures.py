"""What is drawn of a data flow for a finding: the operators it names, those next to them, and counts of the rest."""

import pytest

from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.timeline import MAX_DRAWN_OPERATORS, MAX_NAMED_OPERATORS, flow_picture
from tests.analyzers.flow_tables import steps, tables
from tests.analyzers.test_dead_work import with_metric
from tests.dataflow.table import Table


@pytest.fixture
def metric():
    """Return a step: a product, a metric of two operators on a view of it, and the loss; the metric is named."""
    t = Table()
    out = t.op("mm", t.value(4, 4), t.value(4, 4, role="parameter", name="head.weight"), line=1, ns=20)
    t.op("relu", out, line=1, ns=10)
    t.op("view", out, line=2, ns=0, is_view=True, writes=())  # what it shows is the same value
    mean = t.op("mean", out, line=2, ns=10)
    t.op("sqrt", mean, line=2, ns=10)
    t.op("sum", out, line=3, ns=30, shape=())
    return t


def test_values_are_edges_and_the_rest_is_counted(metric):
    picture = flow_picture(metric.graph(), "dead-work", (3, 4), {("train.py", 2): "metric = h.mean().sqrt()"})
    assert [node.operator for node in picture.nodes] == ["mm", "mean", "sqrt"]
    assert [node.reads for node in picture.nodes] == [(), (0,), (1,)]
    assert [node.is_named for node in picture.nodes] == [False, True, True]
    assert [node.mark for node in picture.nodes] == ["", "", "unused"]
    assert [node.num_before for node in picture.nodes] == [0, 1, 0]  # the relu; the view is no operator
    assert (picture.num_operators, picture.num_named, picture.num_after) == (5, 2, 1)
    assert picture.share == 0.25
    assert picture.nodes[0].inputs == ("input", "head.weight")
    assert picture.nodes[1].where.code == "metric = h.mean().sqrt()"


def test_a_result_and_its_use_are_marked(metric):
    picture = flow_picture(metric.graph(), "constant-work", (0,), {})
    assert [(node.operator, node.mark) for node in picture.nodes] == [
        ("mm", "result"), ("relu", "use"), ("mean", ""), ("sum", ""),
    ]  # fmt: skip


def test_long_flows_are_cut_around_the_result():
    t = Table()
    value = t.value(8)
    for i in range(100):
        value = t.op("sin", value, line=i + 1)
    for _ in range(60):
        t.op("cos", value, line=200)
    picture = flow_picture(t.graph(), "computed-again", range(100), {})
    assert len(picture.nodes) == MAX_DRAWN_OPERATORS
    assert sum(node.is_named for node in picture.nodes) == MAX_NAMED_OPERATORS
    first, *others = picture.nodes
    assert first.num_before == 100 - MAX_NAMED_OPERATORS  # the chain's last ones are drawn, in one piece
    assert not any(node.num_before for node in others)
    assert (
        sum(node.num_before for node in picture.nodes) + picture.num_after + MAX_DRAWN_OPERATORS
        == picture.num_operators
    )


def test_each_finding_of_the_data_flow_has_one(recording):
    found = analyze_rank(tables(recording, steps(with_metric)).capture)
    assert found.picture is not None
    (picture,) = found.picture.flows
    assert picture.rule == "dead-work"
    assert [(node.operator, node.where.line, node.mark) for node in picture.nodes] == [
        ("mm", 2, ""), ("std", 3, "unused"),
    ]  # fmt: skip
