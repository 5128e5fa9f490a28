"""Fusable clusters: what they are, and the bytes that need not move."""

import pytest

from diagnose.dataflow.fusion import unfused_clusters
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table

KB = 1024


def chain(t: Table, x, *names: str, phase: str = "forward"):
    for name in names:
        x = t.op(name, x, line=5, phase=phase)
    return x


def norm(t: Table, x, **more):
    """Compute ``x`` over the root of its mean square."""
    root = t.op("pow", x, line=5, **more)
    for name in ("mean", "add", "rsqrt"):
        root = t.op(name, root, shape=(*x.shape[:-1], 1), line=5, **more)
    return t.op("mul", x, root, line=5, **more)


def test_values_within_a_chain_need_not_move():
    t = Table()
    chain(t, t.value(256), "exp", "add", "log")
    (found,) = unfused_clusters(t.graph())
    assert (found.kind, found.bytes_not_moved, found.bytes_moved) == ("pointwise", 4 * KB, 6 * KB)
    assert found.avoidable == pytest.approx(2 / 3)


def test_several_operators_may_read_a_value_in_one_kernel():
    t = Table()
    x = t.op("exp", t.value(256), line=5)
    t.op("sub", x, t.op("mean", x, shape=(1,), line=5), line=5)
    (found,) = unfused_clusters(t.graph())
    assert (len(found.work.operators), found.bytes_moved - found.bytes_not_moved) == (3, 2 * KB)


def test_a_value_that_is_read_behind_a_product_too_ends_a_cluster():
    """The sum waits for the product, which waits for the value: no kernel makes both."""
    t = Table()
    x = t.op("exp", t.value(256, 1), line=5)
    product = t.op("mm", t.op("neg", x, line=5), t.value(1, 1), line=5)
    t.op("add", x, product, line=5)
    assert unfused_clusters(t.graph()) == ()


def test_casts_belong_to_a_cluster():
    t = Table()
    x = t.op("_to_copy", t.value(256, dtype="bfloat16"), dtype="float32", line=5)
    t.op("_to_copy", norm(t, x), dtype="bfloat16", line=5)
    (found,) = unfused_clusters(t.graph())
    assert (found.kind, len(found.work.operators)) == ("norm", 7)
    assert found.bytes_moved - found.bytes_not_moved == 2 * 256 * 2


def test_what_a_cluster_reads_several_times_comes_in_once():
    t = Table()
    x = t.value(256)
    t.op("mul", x, t.op("tanh", t.op("pow", x, line=5), line=5), line=5)
    (found,) = unfused_clusters(t.graph())
    assert found.bytes_moved - found.bytes_not_moved == 2 * KB


def test_what_is_done_to_a_norm_outside_of_its_function_is_no_part_of_it():
    t = Table()
    x = t.op("add", t.value(256), line=30)
    t.op("relu", norm(t, x, at=(31,)), line=32)
    (found,) = unfused_clusters(t.graph())
    assert (found.kind, len(found.work.operators), [line.line for line in found.work.lines]) == ("norm", 5, [5])


def test_the_sums_for_a_weight_belong_to_the_backward_pass_of_its_norm():
    t = Table()
    norm(t, t.value(4, 64))
    product = t.op("mul", t.value(4, 64), t.value(4, 64), line=5, phase="backward")
    t.op("sum", product, shape=(64,), line=5, phase="backward")
    (found,) = unfused_clusters(t.graph())
    assert len(found.work.operators) == 7


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("_softmax", "log", "neg"), "loss"),
        (("neg", "cat", "mul", "add"), "rotary embedding"),
        (("sigmoid", "mul", "mul"), "gated activation"),
    ],
)
def test_what_a_cluster_is_follows_from_its_operators(names, form):
    t = Table()
    chain(t, t.value(256), *names)
    assert [found.kind for found in unfused_clusters(t.graph())] == [form]


def test_a_root_of_sums_that_scales_nothing_of_them_is_no_norm():
    """As a kernel of distances has it."""
    t = Table()
    sums = t.op("add", t.op("sum", t.value(8, 4), shape=(8, 1), line=5), t.value(1, 8), shape=(8, 8), line=5)
    root = chain(t, sums, "sqrt", "mul")
    t.op("mul", root, chain(t, root, "neg", "exp"), line=5)
    assert [found.kind for found in unfused_clusters(t.graph())] == ["pointwise"]


def distances(t: Table, codes: int = 32, *, square: str = "pow", reads_more: bool = False):
    rows = Use(t.value(64, 8).value, (64, 1, 8), (8, 8, 1), 0, "float32")
    others = Use(t.value(codes, 8).value, (1, codes, 8), (8 * codes, 8, 1), 0, "float32")
    apart = t.op("sub", rows, others, shape=(64, codes, 8), line=5)
    squares = t.op(square, apart, apart, line=5, attributes="exponent=2" * (square == "pow"))
    t.op("sum", squares, shape=(64, codes), line=5)
    if reads_more:
        t.op("mm", apart, line=6)
    return [(found.kind, len(found.work.operators)) for found in unfused_clusters(t.graph())]


@pytest.mark.parametrize("square", ["pow", "mul", "abs"])
def test_differences_of_all_pairs_that_are_summed_up_are_a_matrix_of_distances(square):
    assert distances(Table(), square=square) == [("matrix of distances", 3)]


def test_differences_that_are_needed_themselves_or_of_one_row_alone_are_none():
    assert "matrix of distances" not in [kind for kind, _ in distances(Table(), reads_more=True)]
    assert "matrix of distances" not in [kind for kind, _ in distances(Table(), codes=1)]


def gelu(t: Table, x, gate=None):
    """Compute ``x`` times a tanh of itself, or that of a gate."""
    bent = chain(t, x, "pow", "mul", "tanh", "add")
    return t.op("mul", x if gate is None else gate, bent, line=5)


def test_a_gelu_multiplies_with_what_it_has_bent():
    t = Table()
    gelu(t, t.value(256))
    assert [found.kind for found in unfused_clusters(t.graph())] == ["GELU"]


def test_a_gate_times_a_tanh_of_something_else_is_no_gelu():
    t = Table()
    gelu(t, t.value(256), gate=t.op("neg", t.value(256), line=5))
    assert [found.kind for found in unfused_clusters(t.graph())] == ["pointwise"]


def attention(t: Table, *, keys: int = 16, product: str = "bmm", mask=lambda t, x: x):
    scores = t.op(product, t.value(4, 8, 8), line=4, shape=(4, 8, keys))
    weights = t.op("_softmax", mask(t, t.op("div", scores, line=5)), line=5)
    t.op("bmm", weights, line=6, shape=(4, 8, 8))
    return unfused_clusters(t.graph())


def test_a_softmax_between_products_is_an_attention_that_moves_scores_alone():
    t = Table()
    (found,) = attention(t)
    assert (found.kind, found.avoidable, [t.operators[i].name for i in found.products]) == (
        "attention", 1.0, ["aten::bmm", "aten::bmm"],
    )  # fmt: skip


def full_mask(t, x):
    return t.op("where", t.value(1, 1, 16), x, t.op("full_like", x, line=5), shape=x.shape, line=5)


def test_what_takes_the_shape_of_scores_alone_does_not_part_an_attention():
    (found,) = attention(Table(), mask=full_mask)
    assert (found.kind, len(found.work.operators)) == ("attention", 3)


def dropped(t, x):
    drawn = t.op("bernoulli_", into=t.op("empty_like", x, line=5), line=5, draws=True)
    return t.op("mul", x, t.op("div_", into=drawn, line=5), line=5)


@pytest.mark.parametrize("more", [{"keys": 8}, {"product": "addmm"}, {"mask": dropped}])
def test_a_gate_a_head_and_an_attention_that_drops_scores_on_a_cpu_are_none(more):
    assert "attention" not in [found.kind for found in attention(Table(), **more)]


def test_what_backward_reads_too_counts_in_each_phase():
    t = Table()
    x = t.op("exp", t.value(256), line=5)
    chain(t, x, "add", "log")
    chain(t, x, "mul", phase="backward")
    assert len(unfused_clusters(t.graph())) == 1


def test_the_backward_pass_of_a_form_belongs_to_it():
    t = Table()
    gelu(t, t.value(256))
    chain(t, t.value(256), "mul", "sub", "add", phase="backward")
    (found,) = unfused_clusters(t.graph())
    assert (found.kind, len(found.work.operators)) == ("GELU", 8)


def test_a_loss_of_torch_is_not_written_out():
    t = Table()
    chain(t, t.value(256), "mul", "_log_softmax", "nll_loss_forward")
    assert [found.kind for found in unfused_clusters(t.graph())] == ["pointwise"]


def test_a_loss_of_exponents_and_their_sum_is_written_out():
    t = Table()
    chain(t, t.value(256), "exp", "sum", "log", "neg")
    assert [found.kind for found in unfused_clusters(t.graph())] == ["loss"]


def test_a_sum_of_numbers_joins_no_clusters():
    t = Table()
    parts = [chain(t, t.value(256), "sub", "square", "sum") for _ in range(2)]
    total = [t.op("mean", part, shape=(), line=5) for part in parts]
    t.op("neg", t.op("add", *total, line=6), line=6)
    assert [len(found.work.operators) for found in unfused_clusters(t.graph())] == [8]
