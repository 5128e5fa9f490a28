"""Contents: which part of an operator's work has no effect on the result."""

import pytest

from diagnose.dataflow.contents import untouched_rows, work_on_nothing
from diagnose.dataflow.unread import unread_results
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
    assert found.work.share * found.avoidable == pytest.approx(0.99)


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
    assert found.work.share * found.avoidable == pytest.approx((30 * 0.25 + 30 * (1 - 0.75**2)) / 100)


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
    t.op("mul", t.value(*shape, **facts), t.value(1, role="parameter"), line=2, ns=10)
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
    t.op("mul", mask, t.value(1, role="parameter"), line=4, ns=90)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.value_line.line, lines(found.work)) == ("padding", 2, [3, 4])


def test_the_positions_of_targets_go_through_no_layer_and_are_no_padding():
    t = Table()
    weight = t.op("_to_copy", t.value(8, 100, role="parameter"), dtype="bfloat16", line=3, ns=0)
    targets = t.value(4, 16, dtype="int64", padded=0.75)
    inputs = t.op("randint", shape=(4, 16), dtype="int64", draws=True, line=1, ns=0)
    hidden = t.op("embedding", t.value(9, 8, role="parameter"), inputs, shape=(4, 16, 8), dtype="float32", line=2)
    logits = t.op("mm", hidden._replace(shape=(64, 8), stride=(8, 1)), weight, shape=(64, 100), line=3, ns=40)
    loss = t.op("nll_loss_forward", logits, targets._replace(shape=(64,), stride=(1,)), shape=(), line=4)
    gradient = t.op("nll_loss_backward", loss, logits, targets, shape=(64, 100), line=4, phase="backward", forward=3)
    t.op("mm", gradient, weight, shape=(64, 8), line=3, phase="backward", forward=2)
    assert work_on_nothing(t.graph()) == ()
    moved = t.op(
        "embedding", t.value(9, 8, role="parameter"), targets, shape=(4, 16, 8), dtype="float32", line=5, ns=40
    )
    t.op("mm", moved, t.value(8, 8, role="parameter"), shape=(64, 8), line=6, ns=40)
    (found,) = work_on_nothing(t.graph())  # a decoder's inputs are its targets, one position later
    assert (found.kind, found.extent) == ("padding", 0.75)
    assert {5, 6} <= set(lines(found.work))


@pytest.mark.parametrize(("padded", "found"), [(0.5, ["padding"]), (0.25, ["ignored rows", "padding"])])
def test_rows_that_are_left_out_since_they_are_padding_count_as_that(padded, found):
    t = Table()
    batch, weight = t.value(4, 16, dtype="int64", padded=padded), t.value(8, 8, role="parameter")
    rows = t.op("embedding", weight, batch, shape=(64, 8), dtype="float32", line=2)
    logits = t.op("mm", rows, weight, line=3, ns=100)
    t.op("mul", logits, t.value(64, 1), line=4)
    back = {"phase": "backward", "facts": {"zero_rows": 0.75}}
    gradient = t.op("mul", t.value(64, 8), logits, shape=(64, 8), line=4, forward=2, **back)
    t.op("mm", gradient, weight, line=3, ns=100, forward=1, **back)
    assert [one.kind for one in work_on_nothing(t.graph())] == found


def test_half_of_an_attention_under_a_triangle_is_for_nothing():
    t = Table()
    mask = t.value(16, 16, kind="triangular", role="buffer", dtype="bool")
    scores = t.op("bmm", t.value(4, 16, 8), t.value(4, 8, 16), shape=(4, 16, 16), line=2, ns=40)
    hidden = t.op("masked_fill.Scalar", scores, mask, line=3, ns=10)
    t.op("bmm", t.op("_softmax", hidden, line=4, ns=10), t.value(4, 16, 8), shape=(4, 16, 8), line=5, ns=40)
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.work.share * found.avoidable, lines(found.work)) == ("triangle", 0.5, [2, 3, 4, 5])


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


def unread(t: Table) -> dict[int, float]:
    graph = t.graph()
    return {part.operator: part.unread for part in unread_results(graph, graph.of_step(graph.last_step))}


def last(use, num: int = 1):
    """Return a view of the last positions."""
    return use._replace(shape=(use.shape[0], num, *use.shape[2:]), offset=use.shape[1] - num)


@pytest.mark.parametrize(("num", "share"), [(1, {0: 0.9}), (5, {0: 0.5}), (6, {})])
def test_what_a_slice_leaves_out_is_computed_in_vain(num, share):
    t = Table()
    t.op("sum", last(t.op("mm", t.value(2, 10, 4)), num))
    assert unread(t) == share


def test_parts_that_are_read_one_by_one_add_up():
    t = Table()
    product = t.op("mm", t.value(3, 4))
    for at in range(3):
        t.op("sum", product._replace(shape=(1, 4), offset=4 * at))
    assert unread(t) == {}


def test_what_a_pointwise_operator_makes_in_vain_it_reads_in_vain():
    t = Table()
    t.op("sum", last(t.op("relu", t.op("mm", t.value(2, 10, 4)))))
    assert unread(t) == {0: 0.9, 1: 0.9}
    t = Table()
    t.op("sum", last(t.op("_softmax", t.op("mm", t.value(2, 10, 4)))))
    assert unread(t) == {}


def test_the_backward_pass_of_a_result_reads_no_more_of_it():
    t = Table()
    rows = t.op("sort", t.value(8, 100))
    t.op("sum", rows._replace(shape=(8, 5)))
    t.op("scatter", rows, phase="backward", forward=0)
    assert unread(t) == {0: 0.95, 2: 0.95}  # of which most is zeros
    t.op("scatter", rows, phase="backward", forward=1)
    assert unread(t) == {}


def test_a_product_and_a_norm_need_the_rows_that_are_read_after_them():
    t = Table()
    hidden = t.op("mm", t.value(20, 8), t.value(8, 4), shape=(20, 4), line=1)
    stats = t.value(20, 1), t.value(20, 1)
    normed = t.op("native_layer_norm", t.op("gelu", hidden), shape=(20, 4))
    t.operators[-1] = t.operators[-1]._replace(writes=(normed, *stats))
    out = t.op("addmm", t.value(6), normed, t.value(4, 6), shape=(20, 6))
    t.op("sum", out._replace(shape=(2, 6), stride=(60, 1), offset=54), shape=())
    t.op("mm", normed._replace(shape=(4, 20), stride=(1, 4)), t.value(20, 6), shape=(4, 6), phase="backward", forward=3)
    assert unread(t) == dict.fromkeys(range(4), 0.9) | {5: 0.9}


def test_columns_that_are_not_read_say_nothing_of_rows():
    t = Table()
    hidden = t.op("mm", t.value(20, 8), t.value(8, 4), shape=(20, 4))
    out = t.op("mm", hidden, t.value(4, 6), shape=(20, 6))
    t.op("sum", out._replace(shape=(20, 1), stride=(6, 1)), shape=())
    assert list(unread(t)) == [1]


@pytest.mark.parametrize(("index", "share"), [((3, 4), 1 - 3 / 20), ((3,), None)])
def test_rows_that_are_taken_by_index_and_numbers_of_each_row(index, share):
    t = Table()
    hidden = t.op("mm", t.value(20, 8), t.value(8, 4), shape=(20, 4))
    t.op("index.Tensor", hidden, t.value(*index[:1], dtype="int64"), shape=index)
    assert unread(t) == ({0: share} if share else {})


def test_what_is_cut_out_of_an_image_is_convolved_alone():
    t = Table()
    image = t.op("convolution", t.value(1, 3, 16, 16), t.value(8, 3, 3, 3), shape=(1, 8, 16, 16))
    for offset in (0, 8):
        t.op("sum", image._replace(shape=(1, 8, 4, 4), offset=offset), shape=())
    assert unread(t)[0] == pytest.approx(1 - 2 / 16)


def test_a_part_that_is_changed_in_place_leaves_the_rest_to_be_read():
    t = Table()
    gates = t.op("addmm", t.value(12), t.value(4, 8), t.value(8, 12), shape=(4, 12))
    part = t.op("sigmoid_", into=gates)._replace(shape=(4, 3), stride=(12, 1))
    t.operators[-1] = t.operators[-1]._replace(writes=(part,))
    t.op("sum", part._replace(shape=(4, 12)), shape=())
    assert unread(t) == {}


@pytest.mark.parametrize("use", ["root", "in place", "nothing"])
def test_what_lives_on_changes_or_is_not_read_at_all_is_left_out(use):
    t = Table()
    product = t.op("mm", t.value(2, 10, 4))
    if use != "nothing":
        t.op("sum", last(product))
    if use == "root":
        t.roots.add(product.value)
    if use == "in place":
        t.op("add_", into=product)
    assert unread(t) == {}


def updated(*, zero_rows: float = 0.9, tied: bool = False) -> dict[str, float]:
    """Return the part of each operator that untouched rows take."""
    t = Table()
    table, state = (t.value(100, 8, role=role) for role in ("parameter", "optimizer state"))
    other = t.value(10, 80, role="parameter")
    facts = {"zero_rows": zero_rows}
    gradient = t.op("embedding_dense_backward", t.value(4, 8), shape=(100, 8), phase="backward", facts=facts)
    if tied:
        gradient = t.op("add", gradient, t.value(100, 8), phase="backward", facts={"zero_rows": 0.0})
    t.op("mul_", into=table, phase="optimizer")
    t.op("_foreach_addcmul_", gradient, other, into=state, phase="optimizer")
    t.op("mul_", into=other, phase="optimizer")
    graph = t.graph()
    return {
        f"{one.operator} {graph.operators[one.operator].name[6:]}": one.avoidable
        for one in untouched_rows(graph, [*graph.of_step(0)])
    }


def test_the_gradient_and_what_updates_the_table_are_for_nothing_but_for_the_rows_that_are_looked_up():
    assert updated() == {
        "0 embedding_dense_backward": 0.9,
        "1 mul_": 0.9,
        "2 _foreach_addcmul_": pytest.approx(0.9 * 2 / 3),  # another parameter is a third of what it reads
    }


@pytest.mark.parametrize("more", [{"zero_rows": 0.74}, {"tied": True}])
def test_a_table_that_is_used_and_one_that_is_the_head_as_well_are_not(more):
    assert updated(**more) == {}
