import pytest
import torch

from diagnose.kernels.indexing import as_slice, assign_where, compact, masked_mean, masked_sum, select_rows

MASK = torch.tensor([[True, False, True], [False, False, True]])


def values(dtype=torch.float64):
    return torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=dtype, requires_grad=dtype.is_floating_point)


def test_reductions_are_those_of_the_selection():
    x = values()
    assert masked_sum(x, MASK) == x[MASK].sum() == 10
    assert masked_mean(x, MASK) == x[MASK].mean()
    assert masked_sum(x, MASK, 0).tolist() == [1, 0, 9]
    assert masked_mean(x, MASK, 1).tolist() == [2, 6]
    assert masked_sum(x.detach().long(), MASK) == 10
    assert masked_mean(x, MASK[0]) == x[:, MASK[0]].mean(), "a mask broadcasts"
    assert torch.autograd.gradcheck(lambda v: masked_mean(v, MASK, 0), x)


def test_masked_out_nan_reaches_neither_result_nor_gradient():
    x = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    mean = masked_mean(x, torch.tensor([True, False, False]))
    mean.backward()
    assert mean == 1
    assert x.grad.tolist() == [1, 0, 0]


def test_an_empty_selection_is_zero():
    x = values()
    assert masked_mean(x, torch.zeros_like(MASK)) == 0
    assert masked_mean(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0


def test_assignment_reaches_the_target():
    target = torch.zeros(2, 3)
    view = target[0]
    assert assign_where(target, MASK, torch.arange(3.0)) is target
    assert target.tolist() == [[0, 0, 2], [0, 0, 2]]
    assert view[2] == 2, "in place"
    assert assign_where(target, MASK, -1).tolist() == [[-1, 0, -1], [0, 0, -1]]
    lost = torch.ones(3)
    lost[lost > 0].zero_()
    assert lost.sum() == 3, "the trap that this is instead of"


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_compact_keeps_order_and_counts(capacity):
    x = torch.arange(12.0).view(6, 2).requires_grad_()
    mask = torch.tensor([False, True, True, False, False, True])
    rows, count = compact(x, mask, capacity=capacity)
    expected = x[mask][:capacity]
    assert rows.shape == (capacity, 2)
    assert count == len(expected)
    assert torch.equal(rows[: len(expected)], expected)
    assert not rows[len(expected) :].any()
    rows.sum().backward()
    assert torch.equal(x.grad.sum(1) > 0, mask & (mask.cumsum(0) <= capacity))


def test_compact_of_nothing():
    rows, count = compact(torch.ones(3), torch.zeros(3, dtype=torch.bool), capacity=2)
    assert (rows.tolist(), count) == ([0, 0], 0)


def test_runs_are_views_and_the_rest_is_copied():
    source = torch.arange(40.0).view(10, 4)
    for index in (
        [2, 3, 4],
        [1, 4, 7],
        range(0, 10, 3),
        torch.tensor([5]),
        [-2, -1],
        torch.tensor([], dtype=torch.long),
    ):
        rows = select_rows(source, index)
        assert torch.equal(rows, source[torch.as_tensor(list(index), dtype=torch.long)])
        assert rows.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    for index in ([3, 1], [1, 1], [0, 1, 3], torch.tensor([4, -1, 0])):
        rows = select_rows(source, index)
        assert torch.equal(rows, source[torch.as_tensor(index)])
        assert rows.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def test_rows_go_into_the_given_memory_unless_gradients_flow():
    source, out = torch.arange(40.0).view(10, 4), torch.empty(2, 4)
    assert select_rows(source, [3, 1], out=out) is out
    assert torch.equal(out, source[[3, 1]])
    source.requires_grad_()
    rows = select_rows(source, [3, 1], out=out)
    assert rows is not out
    rows.sum().backward()
    assert source.grad.sum() == 8


def test_slices():
    assert as_slice([2, 4, 6], 8) == slice(2, 7, 2)
    assert as_slice([-1], 8) == slice(7, 8, 1)
    assert as_slice([], 8) == slice(0, 0)
    assert as_slice([3, 2, 1], 8) is None
    assert as_slice([2, 2], 8) is None


def test_no_shape_depends_on_the_mask():
    """Under a compiler, a size that depends on values breaks the graph; in eager mode it is a wait for the device."""

    def everything(x, mask):
        return masked_mean(x, mask), assign_where(x.clone(), mask, 0.0), compact(x, mask, capacity=2)

    x, mask = torch.randn(5), torch.tensor([True, False, True, True, False])
    with torch.device("meta"):
        everything(torch.empty(5), torch.empty(5, dtype=torch.bool))  # meta tensors have no values to count
    torch._dynamo.reset()
    compiled = torch.compile(everything, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), everything(x, mask))


def test_wrong_arguments_are_refused():
    x = values()
    with pytest.raises(TypeError, match=r"must be boolean, not torch.int64; write mask.bool\(\)"):
        masked_sum(x, MASK.long())
    with pytest.raises(ValueError, match=r"mask of shape \(2,\) does not broadcast to \(2, 3\)"):
        masked_sum(x, MASK[:, 0])
    with pytest.raises(ValueError, match=r"values of shape \(4,\) does not broadcast"):
        assign_where(torch.zeros(2, 3), MASK, torch.ones(4))
    with pytest.raises(TypeError, match=r"floating-point values, not torch.int64"):
        masked_mean(x.detach().long(), MASK)
    with pytest.raises(TypeError, match="not a mask; use compact"):
        select_rows(x, MASK[:, 0])
    with pytest.raises(IndexError, match="Row 7 is out of range; there are 2 rows"):
        select_rows(x, [7])
    with pytest.raises(ValueError, match=r"one mask value for each of 2 rows, not \(2, 3\)"):
        compact(x, MASK, capacity=1)
    with pytest.raises(ValueError, match="capacity >= 1, not 0"):
        compact(x, MASK[:, 0], capacity=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_many_half_precision_values_are_those_of_plain_indexing(dtype):
    values, mask = torch.full((4096, 32), 100.0, dtype=dtype), torch.ones(4096, 32, dtype=torch.bool)
    mask[0] = False
    values.requires_grad_()
    mean = masked_mean(values, mask)
    assert (mean.dtype, mean.item()) == (dtype, 100.0)
    assert masked_mean(values, mask, 0).tolist() == [100.0] * 32
    mean.backward()
    assert values.grad[0].tolist() == [0.0] * 32
    assert values.grad[1, 0] == torch.tensor(1 / (4095 * 32), dtype=dtype)
