"""Rows that are multiplied by zero: what is computed of them before the product, after it, and of their gradients."""

import pytest

from diagnose.dataflow.contents import work_on_nothing
from diagnose.dataflow.masked import masked_rows
from tests.dataflow.table import Table, lines, strides

ROWS, WIDTH = 64, 8
ZEROS = {"zero_rows": 0.75, "zeros": 0.75}


def pairs(
    name: str = "mul", *, zeros: float = 0.75, before: str = "mm", metric: bool = False, learned: bool = False
) -> Table:
    """Return messages of 64 pairs: line 2 makes them, line 3 applies a mask of line 1, and line 4 sums them."""
    t = Table()
    weight = t.value(4, WIDTH, role="parameter")
    mask = t.op("lt", t.value(ROWS, 1), line=1, dtype="bool", facts={"zeros": zeros if name == "mul" else 1 - zeros})
    basis = t.op("exp", t.value(ROWS, 4), line=2)
    made = t.op(before, basis, weight, shape=(ROWS, WIDTH), line=2)
    message = t.op("gelu", made, line=2)
    if metric:
        t.op("amax", message, shape=(), line=9)
    of_mask = ZEROS if zeros == 0.75 else {"zero_rows": zeros, "zeros": zeros}
    left = t.op(name, message, mask, line=3, facts=of_mask)
    t.op("sum", left._replace(shape=(8, 8, WIDTH), stride=strides((8, 8, WIDTH))), shape=(8, WIDTH), line=4)
    back = {"phase": "backward", "line": 3}
    above = t.value(ROWS, WIDTH)
    t.op("mul", above, mask, forward=4, facts=of_mask, **back)
    gradient = t.value(ROWS, WIDTH)._replace(value=len(t.values) - 2)
    if learned:
        t.op("mul", above, message, forward=4, **back)
    gradient = t.op("gelu_backward", gradient, made, forward=3, facts=of_mask, phase="backward", line=2)
    if before == "native_layer_norm":  # whose backward function also makes sums over the rows
        t.op("native_layer_norm_backward", gradient, basis, forward=2, facts=of_mask, phase="backward", line=2)
        sums = t.value(WIDTH)
        t.operators[-1] = t.operators[-1]._replace(writes=(*t.operators[-1].writes, sums))
        return t
    transposed = gradient._replace(shape=(WIDTH, ROWS), stride=(1, WIDTH))
    t.op("mm", transposed, basis, shape=(WIDTH, 4), forward=2, phase="backward", line=2)
    return t


def found(t: Table) -> list[str]:
    graph = t.graph()
    each = sorted(one.operator for one in masked_rows(graph, list(graph.of_step(graph.last_step))))
    return [graph.operators[i].name[6:] for i in each]


BACKWARD = ["mul", "gelu_backward", "mm"]


@pytest.mark.parametrize("name", ["mul", "masked_fill"])
def test_rows_before_and_after_a_mask_are_computed_for_nothing_and_so_are_their_gradients(name):
    t = pairs(name)
    if name == "mul":
        assert found(t) == ["exp", "mm", "gelu", "mul", "sum", *BACKWARD]
    assert {"exp", "mm", "gelu", name, "sum"} <= set(found(t))
    (record,) = work_on_nothing(t.graph())
    assert (record.kind, record.avoidable, record.value_line.line) == ("masked rows", 0.75, 1)
    assert lines(record.work) == [2, 3, 4]


def test_a_norm_of_each_row_is_for_nothing_though_its_weight_has_a_gradient_of_all_rows():
    names = found(pairs(before="native_layer_norm"))
    assert names[:3] == ["exp", "native_layer_norm", "gelu"]
    assert names[-1] == "native_layer_norm_backward"


@pytest.mark.parametrize("zeros", [0.25, 1.0])
def test_a_mask_that_leaves_few_rows_out_or_all_of_them_says_nothing(zeros):
    assert found(pairs(zeros=zeros)) == []


def test_what_another_operator_reads_is_needed():
    assert found(pairs(metric=True)) == []


def test_a_factor_that_learns_needs_all_rows():
    assert found(pairs(learned=True)) == []


def test_what_mixes_rows_is_needed():
    assert {"cumsum", "exp"}.isdisjoint(found(pairs(before="cumsum")))


def test_a_mask_of_elements_leaves_no_rows_out():
    t = Table()
    mask = t.value(ROWS, WIDTH, zeros=0.75)
    t.op("mul", t.op("gelu", t.op("mm", t.value(ROWS, WIDTH), t.value(WIDTH, WIDTH))), mask, facts=ZEROS)
    assert found(t) == []
