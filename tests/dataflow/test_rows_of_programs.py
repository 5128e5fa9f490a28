"""Equal rows in what torch has run: which operators keep rows equal, and which mix them."""

from collections import Counter

import pytest
import torch
from torch.nn import functional

from diagnose.dataflow.graph import base_name, graph_of
from diagnose.dataflow.rows import equal_rows
from tests.capture.flows import record_dataflow

ROWS = 8


def found_in(run, *given):
    """Return the largest record of equal rows in a function of some tensors."""
    found = equal_rows(graph_of(record_dataflow(lambda: run(*given))))
    return found[0] if found else None


def repeated(*shape):
    """Return a function that repeats a tensor of one row, and the tensor."""
    return lambda x: x.expand(ROWS, *shape[1:]).clone(), torch.randn(1, *shape[1:])


MATRICES, IMAGES, HEADS = (1, 3, 3), (1, 4, 6, 6), (1, 2, 5, 4)
ALONE = {
    "softmax": (MATRICES, lambda x: x.softmax(-1)),
    "sum": (MATRICES, lambda x: x.sum(1)),
    "norm": (MATRICES, lambda x: functional.layer_norm(x, (3,))),
    "product of rows": (MATRICES, lambda x: x @ torch.ones(3, 2)),
    "rows behind each other": (
        MATRICES,
        lambda x: (x.transpose(1, 2).reshape(-1, 3) @ torch.eye(3)).view(x.shape).exp(),
    ),
    "product of matrices": (MATRICES, lambda x: x @ x.mT),
    "factors": (MATRICES, torch.linalg.slogdet),
    "exponential": (MATRICES, torch.matrix_exp),
    "sequence first": (MATRICES, lambda x: x.transpose(0, 1).contiguous().softmax(-1)),
    "largest": (MATRICES, lambda x: x.topk(2, -1).values),
    "convolution": (IMAGES, lambda x: functional.conv2d(x, torch.ones(2, 4, 3, 3))),
    "pool": (IMAGES, lambda x: functional.max_pool2d(x, 2)),
    "groups": (IMAGES, lambda x: functional.group_norm(x, 2)),
    "border": (IMAGES, lambda x: functional.pad(x, (1, 1)).exp()),
    "attention": (HEADS, lambda x: functional.scaled_dot_product_attention(x, x, x)),
    "in place": (IMAGES, lambda x: x.relu_().sigmoid()),
}
MIXED = {
    "softmax": (MATRICES, lambda x: x.softmax(0)),
    "running sum": (MATRICES, lambda x: x.cumsum(0)),
    "product of columns": (MATRICES, lambda x: x.flatten(1).T @ x.flatten(1)),
    "batch norm": (IMAGES, lambda x: functional.batch_norm(x, None, None, training=True)),
    "dropout": (MATRICES, lambda x: functional.dropout(x).exp()),
    "others": (MATRICES, lambda x: (x + torch.rand(ROWS, 1, 1)).exp()),
    "a part": (MATRICES, lambda x: x[0].exp()),
    "new rows": (MATRICES, lambda x: functional.pad(x, (0, 0, 0, 0, 0, 1)).exp()),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_works_on_each_row_alone_keeps_rows_equal(name):
    shape, run = ALONE[name]
    repeat, x = repeated(*shape)
    found = found_in(lambda one: run(repeat(one)), x)
    assert found.avoidable == pytest.approx(1 - 1 / ROWS)


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_rows_or_makes_them_differ_does_not(name):
    shape, run = MIXED[name]
    repeat, x = repeated(*shape)
    assert found_in(lambda one: run(repeat(one)), x) is None


WINDOWS = {
    "view": lambda x: x.unfold(1, 4, 2).permute(0, 1, 3, 2),
    "stack": lambda x: torch.stack([x[:, i : i + 4] for i in range(0, 7, 2)], 1),
    "cat": lambda x: torch.cat([x[:, i : i + 4] for i in range(0, 7, 2)], 1),
    "gather": lambda x: x[:, torch.arange(0, 7, 2)[:, None] + torch.arange(4)],
}


@pytest.mark.parametrize("how", WINDOWS)
def test_overlapping_windows_have_each_frame_several_times(how):
    """Of 4 windows of 4 frames, 2 apart, 10 frames differ."""
    found = found_in(lambda x: WINDOWS[how](x).reshape(-1, 5) @ torch.ones(5, 3), torch.randn(2, 10, 5))
    if how == "gather":  # of which nothing is known but that it takes 10 frames at most
        assert found is None
    else:
        assert found.avoidable == pytest.approx(1 - 10 / 16)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.unfold(1, 2, 2).permute(0, 1, 3, 2).reshape(-1, 5) @ torch.ones(5, 3),
        lambda x: x.unfold(1, 4, 2).flatten(2) @ torch.ones(20, 3),
    ],
)
def test_windows_side_by_side_or_as_a_whole_all_differ(run):
    assert found_in(run, torch.randn(2, 10, 5)) is None


def test_a_recursion_of_one_matrix_repeats_all_of_its_operators():
    def run(start, factor):
        state = start.expand(ROWS, 3, 3)
        for _ in range(3):
            state = factor @ state @ factor.T + torch.eye(3)
            root = torch.linalg.cholesky(state)
            state = root @ root.mT
        return state

    flow = record_dataflow(lambda: run(torch.eye(3), torch.randn(3, 3)))
    (found,) = equal_rows(graph_of(flow))
    assert found.avoidable == pytest.approx(1 - 1 / ROWS)
    names = Counter(base_name(flow.operators[i]) for i in found.work.operators)
    assert (names["linalg_cholesky_ex"], names["add"], names["mm"] + names["bmm"]) == (3, 3, 9)
