"""Cross entropy's own: reductions, targets that are none, 16 bits, chunks, and what is kept in memory."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from diagnose.kernels import ops
from diagnose.kernels.ops.custom_op import using


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(implementation, device, reduction):
    logits, target = torch.randn(6, 9, device=device), torch.tensor([0, 8, 3, -100, 5, -100], device=device)
    got = ops.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(got, F.cross_entropy(logits, target, reduction=reduction))


def test_the_mean_over_ignored_rows_alone_is_nan_as_in_torch(implementation, device):
    logits = torch.randn(2, 3, device=device)
    target = torch.full((2,), -100, device=device)
    assert ops.cross_entropy(logits, target).isnan()
    assert ops.cross_entropy(logits, target, reduction="sum") == 0


def test_ignored_rows_may_hold_anything(implementation, device):
    logits = torch.tensor([[torch.inf, torch.nan, 0.0], [1.0, 2.0, 3.0]], device=device, requires_grad=True)
    loss = ops.cross_entropy(logits, torch.tensor([-100, 1], device=device))
    loss.backward()
    torch.testing.assert_close(loss, F.cross_entropy(logits[1:].detach(), torch.tensor([1], device=device)))
    assert logits.grad[0].tolist() == [0, 0, 0]


def test_a_target_that_is_no_class_is_refused_on_a_cpu():
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=f"targets from 0 to 2, or ignore_index, not {wrong}"):
            ops.cross_entropy(torch.randn(2, 3), torch.tensor([0, wrong]))


def test_a_target_that_is_no_class_makes_the_program_say_nan(device):
    pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")
    with using("triton"), np.errstate(all="ignore"):
        loss = ops.cross_entropy(
            torch.randn(2, 3, device=device), torch.tensor([0, 7], device=device), reduction="none"
        )
    assert loss.isnan().tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_16_bit_logits_is_not_rounded(implementation, device, dtype):
    logits, target = torch.randn(5, 11, device=device).to(dtype), torch.arange(5, device=device)
    got = ops.cross_entropy(logits, target)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, F.cross_entropy(logits.float(), target))


def test_logits_that_are_infinite_or_spread_far(implementation, device):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-torch.inf, 0.0, 1.0]], device=device)
    target = torch.tensor([0, 1], device=device)
    torch.testing.assert_close(ops.cross_entropy(logits, target), F.cross_entropy(logits, target))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_every_chunking_gives_one_loss(device, chunk):
    hidden, head, bias = (torch.randn(s, device=device, requires_grad=True) for s in ((2, 3, 5), (7, 5), (7,)))
    target = torch.tensor([[0, 6, 2], [3, -100, 5]], device=device)
    loss = ops.linear_cross_entropy(hidden, head, target, bias, chunk=chunk, label_smoothing=0.1)
    want = F.cross_entropy(F.linear(hidden, head, bias).flatten(0, 1), target.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, want)
    parameters = (hidden, head, bias)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(want, parameters))


def test_linear_cross_entropy_keeps_no_logits_of_all_rows():
    hidden, head = torch.randn(64, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    kept = []
    pack = lambda tensor: kept.append(tensor.numel()) or tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.linear_cross_entropy(hidden, head, torch.arange(64) % 50, chunk=8)
    assert max(kept, default=0) <= 64 * 4


def test_linear_cross_entropy_follows_autocast(device):
    hidden, head = torch.randn(6, 4, device=device), torch.randn(9, 4, device=device)
    target = torch.arange(6, device=device)
    with torch.autocast(device, torch.bfloat16):
        loss = ops.linear_cross_entropy(hidden, head, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ head.t(), target), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": torch.tensor([0.0, 1.0])}, TypeError, "needs target in one of int64, not torch.float32"),
        ({"target": torch.tensor([0])}, ValueError, "target in the shape of logits without"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing within 0 and 1"),
        ({"reduction": "max"}, ValueError, "reduction in mean, sum, none"),
        ({"logits": torch.ones(2, 0)}, ValueError, "at least one class"),
    ],
)
def test_what_does_not_fit_is_named(change, error, message):
    arguments = {"logits": torch.randn(2, 3), "target": torch.tensor([0, 1])} | change
    with pytest.raises(error, match=message):
        ops.cross_entropy(**arguments)


def test_linear_cross_entropy_names_shapes():
    with pytest.raises(ValueError, match=r"hidden \(..., features\), weight"):
        ops.linear_cross_entropy(torch.randn(2, 3), torch.randn(5, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="chunk >= 1"):
        ops.linear_cross_entropy(torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, 1]), chunk=0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_turns_a_part_and_leaves_the_rest(implementation, device, interleaved):
    cos, sin = ops.angles(4, 6, device=device)
    x = torch.randn(2, 4, 3, 10, device=device)
    y = ops.rotary(x, cos, sin, seq_dim=1, interleaved=interleaved)
    torch.testing.assert_close(y[..., 6:], x[..., 6:])
    torch.testing.assert_close(y[:, 0], x[:, 0])  # position 0 is not turned
    torch.testing.assert_close(y[..., :6], ops.rotary(x[..., :6], cos, sin, seq_dim=-3, interleaved=interleaved))
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))


def test_rotated_products_depend_on_the_distance_alone(implementation, device):
    cos, sin = ops.angles(9, 8, device=device)
    query, key = (torch.randn(8, device=device).expand(9, 8) for _ in range(2))
    scores = ops.rotary(query, cos, sin) @ ops.rotary(key, cos, sin).t()
    for distance in range(9):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, c, s: ops.rotary(x, c[:2], s[:2]), "cos and sin as"),
        (lambda x, c, s: ops.rotary(x, c, s[:, :1]), "sin in the shape of cos"),
        (lambda x, c, s: ops.rotary(x, c.requires_grad_(), s), "angles as constants"),
        (lambda x, c, s: ops.rotary(x, c, s, seq_dim=-1), "seq_dim among the dimensions"),
        (lambda x, c, s: ops.angles(4, 3), "even number of features"),
    ],
)
def test_rotary_names_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(3, 4), *ops.angles(3, 4))


def test_gradients_that_were_calculated_beside_the_loss_serve_twice(device):
    hidden, weight = (torch.randn(shape, device=device, requires_grad=True) for shape in ((6, 4), (5, 4)))
    target = torch.tensor([0, 4, 2, -100, 1, 3], device=device)
    loss = ops.linear_cross_entropy(hidden, weight, target, chunk=2)
    mine = [torch.autograd.grad(loss * factor, (hidden, weight), retain_graph=True) for factor in (1.0, 3.0)]
    plain = F.cross_entropy(hidden @ weight.t(), target)
    for factor, got in zip((1.0, 3.0), mine, strict=True):
        want = torch.autograd.grad(plain * factor, (hidden, weight), retain_graph=True)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_summed_over_many_chunks_are_as_exact_as_of_one(device, dtype):
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(2048, 32), torch.randn(50, 32) * 0.2, torch.randn(50)
    given = [t.to(device, dtype).requires_grad_() for t in (hidden, weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in given]
    target = torch.randint(50, (2048,), device=device)
    precise = torch.autograd.grad(F.cross_entropy(F.linear(*exact), target), exact)

    def errors(chunk, factor=1.0):
        loss = ops.linear_cross_entropy(*given[:2], target, given[2], chunk=chunk) * factor
        gradients = torch.autograd.grad(loss, given)
        return [float((g.double() / factor - p).norm() / p.norm()) for g, p in zip(gradients, precise, strict=True)]

    rounding = torch.finfo(dtype).eps / 2
    for chunk in (2048, 8):
        assert max(errors(chunk)) < 1.2 * rounding
    assert max(errors(8, factor=1 / 3)) < 1.5 * rounding, "the factor itself is not rounded to 16 bits"
