"""Contents: which part of an operator's work has no effect on the result."""

import pytest

from diagnose.dataflow.contents import work_on_nothing
from tests.dataflow.table import Table, lines


def test_a_product_with_one_hot_rows_is_a_lookup():
    t = Table()
    one_hot = {"kind": "one-hot"}
    zeros = t.op("zeros", shape=(8, 100), line=2, ns=5)
    rows = t.op("scatter_", t.value(8, 1), into=zeros, line=2, ns=5, facts=one_hot)
    floats = t.op("_to_copy", rows, line=3, ns=10, facts=one_hot)
    t.op("mm", floats, t.value(100, 4, role="parameter"), shape=(8, 4), line=4, ns=80)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.shape, lines(found.work), found.use_line.line) == ("one-hot", (8, 100), [2, 3, 4], 4)
    assert found.avoidable_share == pytest.approx(0.99)


def test_few_columns_or_one_hot_rows_in_a_sum_are_not():
    t = Table()
    t.op("mm", t.value(8, 10, kind="one-hot"), t.value(10, 4))
    t.op("add", t.value(8, 100, kind="one-hot"), t.value(8, 100))
    assert work_on_nothing(t.graph()) == ()


def sparse(*contents: str, zeros: float = 0.97) -> Table:
    t = Table()
    for t.step, content in enumerate(contents):
        t.op("mm", t.value(50, 50, zeros=zeros, content=content), t.value(50, 8), line=5)
    return t


def test_a_matrix_of_zeros_in_the_same_places_can_be_sparse():
    (found,) = work_on_nothing(sparse("a", "a").graph())
    assert (found.kind, found.avoidable, found.use_line.line) == ("sparse", 0.97, 5)


def test_activations_that_happen_to_be_zero_cannot():
    assert work_on_nothing(sparse("a", "b").graph()) == ()
    assert work_on_nothing(sparse("a", "a", zeros=0.5).graph()) == ()


def test_padding_goes_through_all_that_has_its_positions():
    t = Table()
    batch = t.value(4, 16, dtype="int64", padded=0.25)
    weight = t.value(8, 8, role="parameter")
    x = t.op("embedding", weight, batch, shape=(4, 16, 8), dtype="float32", line=2, ns=10)
    x = t.op("mm", x, weight, shape=(64, 8), line=3, ns=20)
    scores = t.op("bmm", x, shape=(4, 16, 16), line=4, ns=30)
    t.op("bernoulli_.float", shape=(4, 16, 8), draws=True, line=7, ns=0)
    t.op("sum", t.op("mean", scores, shape=(4, 8), line=5, ns=0), shape=(4,), line=6, ns=40)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.extent, lines(found.work)) == ("padding", 0.25, [2, 3, 4, 5, 7])
    assert found.avoidable_share == pytest.approx((30 * 0.25 + 30 * (1 - 0.75**2)) / 100)


@pytest.mark.parametrize(
    ("shape", "facts", "found"),
    [
        ((4, 16), {"padded": 0.25}, True),
        ((4, 16, 3), {"padded_rows": 0.25}, True),
        ((4, 16, 3), {"padded": 0.25}, False),
        ((4, 16), {"padded": 0.25, "role": "parameter"}, False),
    ],
)
def test_of_signals_and_frames_the_padded_positions_are_the_second_dimension(shape, facts, found):
    t = Table()
    t.op("relu", t.value(*shape, **facts), line=2, ns=10)
    records = work_on_nothing(t.graph())
    assert [(one.kind, one.shape, one.dtype, one.extent) for one in records] == [
        ("padding", (4, 16), "float32", 0.25)
    ] * found


@pytest.mark.parametrize(("before", "found"), [(0.5, True), (0.25, False)])
def test_rows_of_one_length_are_padded_where_another_step_has_another_length(before, found):
    t = Table()
    weight = t.value(8, 8, role="parameter")
    for share in (before, 0.25):
        batch = t.value(4, 16, dtype="int64", padded=0.0, evenly_padded=share)
        t.op("embedding", weight, batch, shape=(4, 16, 8), dtype="float32", line=2, ns=10)
        t.step += 1
    t.step -= 1
    assert [one.extent for one in work_on_nothing(t.graph())] == [0.25] * found


def test_a_padded_batch_may_be_made_in_the_step_and_what_is_computed_of_it_is_no_other():
    t = Table()
    facts = {"padded": 0.5}
    batch = t.op("pad", t.value(4, 8, dtype="int64"), shape=(4, 16), line=2, ns=0, facts=facts)
    mask = t.op("ne", batch, dtype="int64", line=3, ns=10, facts=facts)
    t.op("mul", mask, line=4, ns=90)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.value_line.line, lines(found.work)) == ("padding", 2, [3, 4])


def ignored(*, metric: bool) -> Table:
    """Return logits of line 3 whose gradient is zero in three of four rows."""
    t = Table()
    logits = t.op("mm", t.value(8, 4), t.value(4, 100), shape=(8, 100), line=3, ns=40)
    loss = t.op("_log_softmax", logits, line=4, ns=0)
    if metric:
        t.op("argmax", logits, shape=(8,), line=5, ns=0)
    back = {"phase": "backward"}
    gradient = t.op("_log_softmax_backward_data", loss, line=4, ns=20, facts={"zero_rows": 0.75}, forward=1, **back)
    t.op("mm", gradient, shape=(8, 4), line=3, ns=40, forward=0, **back)
    return t


def test_rows_without_gradient_count_in_both_passes():
    (found,) = work_on_nothing(ignored(metric=False).graph())
    assert (found.kind, found.value_line.line, lines(found.work)) == ("ignored rows", 4, [3])
    assert found.avoidable_share == pytest.approx(0.8 * 0.75)


def test_rows_that_a_metric_reads_count_in_the_backward_pass_only():
    (found,) = work_on_nothing(ignored(metric=True).graph())
    assert found.avoidable_share == pytest.approx(0.4 * 0.75)


def test_half_of_an_attention_under_a_triangle_is_for_nothing():
    t = Table()
    mask = t.value(16, 16, kind="triangular", role="buffer", dtype="bool")
    scores = t.op("bmm", t.value(4, 16, 8), t.value(4, 8, 16), shape=(4, 16, 16), line=2, ns=40)
    hidden = t.op("masked_fill.Scalar", scores, mask, line=3, ns=10)
    t.op("bmm", t.op("_softmax", hidden, line=4, ns=10), t.value(4, 16, 8), shape=(4, 16, 8), line=5, ns=40)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.avoidable_share, lines(found.work)) == ("triangle", 0.5, [2, 3, 4, 5])


def test_subnormal_numbers_cost_what_the_operator_takes_beyond_normal_ones():
    t = Table()
    t.op("mul", t.value(64), line=2, ns=10)
    t.op("mul", t.value(64, subnormal=0.5), line=3, ns=90)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.use_line.line, found.avoidable) == ("subnormal", 3, pytest.approx(8 / 9))


def test_products_with_zeros_are_nothing_and_weights_of_zeros_are_not():
    t = Table()
    nothing = {"zeros": 1.0, "kind": "constant"}
    t.op("mm", t.value(4, 4, **nothing), t.value(4, 4), line=2)
    t.op("mm", t.value(4, 4), t.value(4, 4, role="parameter", **nothing), line=3)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, lines(found.work)) == ("zeros", [2])


def test_a_matrix_put_into_zeros_by_index_is_sparse_wherever_its_numbers_are():
    t = Table()
    zeros = t.op("zeros", shape=(100, 100), line=2, facts={"zeros": 1.0, "kind": "constant"})
    put = t.op("index_put_", t.value(50), into=zeros, line=3, facts={"zeros": 0.99})
    matrix = t.op("div.Tensor", put, t.value(100, 1), line=4, facts={"zeros": 0.99})
    t.op("mm", matrix, t.value(100, 8), shape=(100, 8), line=5, ns=50)
    t.op("mm", t.op("relu", t.value(100, 100), line=6, facts={"zeros": 0.99}), t.value(100, 8), shape=(100, 8), line=6)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, lines(found.work), found.avoidable) == ("sparse", [2, 3, 4, 5], pytest.approx(0.99))
