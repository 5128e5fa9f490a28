"""Blocks that are written into zeros, and diagonal matrices."""

import pytest

from diagnose.dataflow.contents import work_on_nothing
from diagnose.dataflow.structured import structured_zeros
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table


def written_blocks(t, *, side=8, block=2, name="copy_"):
    """Write two blocks into zeros."""
    zeros = t.op("new_zeros", shape=(side, side), line=1, attributes=f"size=({side}, {side})")
    for at in range(0, 2 * block, block):
        seen = Use(zeros.value, (block, block), (side, 1), at * (side + 1), "float32")
        now = t.op(name, t.value(block, block, role="parameter"), into=zeros, line=2)
        now = Use(now.value, seen.shape, seen.stride, seen.offset, "float32")
        t.operators[-1] = t.operators[-1]._replace(writes=(now,))
        t.values[now.value] = t.values[now.value]._replace(shape=(side, side))
    return Use(now.value, (side, side), (side, 1), 0, "float32")


def steps(make, times=2):
    t = Table()
    for t.step in range(times):
        make(t)
    return t


def of_lines(t):
    g = t.graph()
    return {(one.kind, g.operators[one.operator].place.line): one.share for one in structured_zeros(g)}


def product(t, matrix, *, name="mm"):
    out = t.op(name, t.value(4, matrix.shape[-2]), matrix, shape=(4, matrix.shape[-1]), line=5, ns=100)
    return out, len(t.operators) - 1


def test_a_product_with_written_blocks_needs_these_only():
    t = steps(lambda t: product(t, written_blocks(t)))
    assert of_lines(t) == {("blocks", line): 1 - 8 / 64 for line in (1, 2, 5)}
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.value_line.line, found.use_line.line) == ("blocks", 2, 5)
    assert found.extent == pytest.approx(0.875)


def test_copies_and_factors_keep_the_zeros_and_the_backward_pass_multiplies_them_too():
    def make(t):
        made = t.op("mul.Tensor", t.op("clone", written_blocks(t), line=3), t.value(8, 8), line=4)
        _, forward = product(t, made)
        t.op("mm", t.value(8, 4), shape=(8, 8), line=6, phase="backward", forward=forward)

    assert {line for _, line in of_lines(steps(make))} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("name", "shape", "attributes"),
    [("constant_pad_nd", (8, 2), "pad=[0, 6]"), ("block_diag", (4, 4), "")],
)
def test_padding_and_blocks_along_a_diagonal_are_written_blocks(name, shape, attributes):
    t = steps(lambda t: product(t, t.op(name, t.value(*shape), shape=(8, 8), line=3, attributes=attributes)))
    assert of_lines(t)["blocks", 5] == 1 - shape[0] * shape[1] / 64


def test_zeros_that_are_joined_to_blocks_are_zeros_around_them():
    def make(t):
        zeros = t.op("zeros", shape=(2, 6), line=1)
        row = t.op("cat", t.value(2, 2), zeros, shape=(2, 8), line=2)
        product(t, t.op("cat", row, t.op("zeros", shape=(6, 8), line=1), shape=(8, 8), line=3))

    assert of_lines(steps(make)) == {("blocks", line): 1 - 4 / 64 for line in (1, 2, 3, 5)}


@pytest.mark.parametrize(
    "options", [{"side": 4, "block": 2}, {"name": "index_put_"}, {"name": "masked_fill_"}], ids=["half", "put", "mask"]
)
def test_what_is_half_written_or_anywhere_is_no_block(options):
    options = {"side": 8, **options}
    t = steps(lambda t: product(t, written_blocks(t, **options)))
    assert all(share <= 0.5 for share in of_lines(t).values())


def test_one_step_does_not_tell_what_the_next_one_writes():
    assert of_lines(steps(lambda t: product(t, written_blocks(t)), times=1)) == {}
    t = steps(lambda t: product(t, written_blocks(t, block=2 if t.step else 1)))
    assert of_lines(t) == {}


def test_a_part_of_a_cache_that_is_read_alone_is_whole():
    def make(t):
        cache = written_blocks(t)
        product(t, Use(cache.value, (2, 2), (8, 1), 0, "float32"))

    assert of_lines(steps(make)) == {}


def diagonal(t, *, side=8, made="diag_embed"):
    facts = {"zeros": 1 - 1 / side, "kind": "diagonal" if made != "diag_embed" else ""}
    return t.op(made, t.value(3, side), shape=(3, side, side), line=2, facts=facts)


def factor(t, matrix, *, zeros):
    facts = {"zeros": zeros}
    return t.op("linalg_cholesky_ex", matrix, line=3, facts=facts)


@pytest.mark.parametrize("made", ["diag_embed", "mul"])
def test_diagonal_matrices_need_a_vector(made):
    t = Table()
    root = factor(t, diagonal(t, made=made), zeros=0.9)
    t.op("bmm", root, t.value(3, 8, 1), shape=(3, 8, 1), line=4)
    t.op("linalg_solve_triangular", root, root, line=5, phase="backward", forward=1)
    assert of_lines(t) == {("diagonal", line): 1 - 1 / 8 for line in (2, 3, 4, 5)}


def test_what_is_added_to_a_dense_matrix_is_none():
    t = Table()
    noise = diagonal(t)
    dense = t.op("add", noise, t.value(3, 8, 8), line=3, facts={"zeros": 0.0})
    t.op("linalg_cholesky_ex", dense, line=4)
    assert of_lines(t) == {("diagonal", 2): 1 - 1 / 8}


def test_small_matrices_parameters_and_masks_are_none():
    t = Table()
    t.op("mm", t.value(4, 4, kind="diagonal", zeros=0.75), t.value(4, 4), line=2)
    t.op("mm", t.value(8, 8, kind="diagonal", role="parameter"), t.value(8, 8), line=3)
    t.op("sum", t.value(8, 8, kind="diagonal", dtype="bool"), shape=(), line=4)
    assert of_lines(t) == {}
