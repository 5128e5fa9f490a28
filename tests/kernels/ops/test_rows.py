"""Rows of any length, anywhere in memory, with anything in them."""

import importlib

import pytest
import torch
from torch.nn import functional as F

from diagnose.kernels import ops
from diagnose.kernels.ops.custom_op import using


@pytest.fixture
def short_blocks(monkeypatch):
    """Let programs hold eight columns, so that small rows are walked through as the longest are."""
    pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")
    monkeypatch.setattr(importlib.import_module("diagnose.kernels.ops.triton_kernels.layout"), "MAX_BLOCK", 8)
    with using("triton"):
        yield


def results(case, dtype):
    arguments = case.arguments(dtype)
    outputs = case.function(*arguments)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    inputs = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    return [*outputs, *torch.autograd.grad(sum(o.square().sum() for o in outputs), inputs)]


def widened(case):
    """Return the case over rows of five times the length, in sevens' place."""
    make = case.make
    wide = lambda dtype: tuple(torch.cat([a] * 5, -1) if isinstance(a, torch.Tensor) else a for a in make(dtype))
    return type(case)(case.function, case.reference, wide)


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "add_rms_norm", "add_layer_norm", "layer_norm-plain"])
def test_long_rows_are_walked_through(short_blocks, cases, name):
    case = widened(cases[name])
    got = results(case, torch.float64)
    with using("eager"):
        want = results(case, torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("width", [7, 40])
def test_softmax_of_infinities_and_nan_is_torchs(implementation, device, monkeypatch, width):
    if implementation == "triton":
        monkeypatch.setattr(importlib.import_module("diagnose.kernels.ops.triton_kernels.layout"), "MAX_BLOCK", 16)
    x = torch.randn(6, width, device=device)
    x[0] = -torch.inf
    x[1, : width - 2] = -torch.inf  # the first blocks hold nothing
    x[2, 2:] = -torch.inf
    x[3, 3], x[4, 4] = torch.nan, torch.inf
    torch.testing.assert_close(ops.softmax(x), F.softmax(x, -1), equal_nan=True)


def far(tensor, file):
    """Return the tensor with its last row more than 2^31 elements behind its first; a sparse file is its memory."""
    rows, width = tensor.shape[0], tensor[0].numel()
    stride = 2**31 // (rows - 1) + 8
    flat = torch.from_file(str(file), shared=True, size=(rows - 1) * stride + width, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, (stride, *tensor[0].stride())).copy_(tensor)


def test_rows_beyond_two_to_the_31_elements(case, implementation, tmp_path):
    torch.manual_seed(0)
    arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in case.arguments(torch.float16)]
    expected = case.function(*arguments)
    wide = [
        far(a, tmp_path / f"{place}") if a.dim() > 1 and a.is_floating_point() and a.device.type == "cpu" else a
        for place, a in enumerate(arguments)
    ]
    if wide[0] is arguments[0]:
        pytest.skip("needs the memory of a CPU; a GPU has none that is sparse")
    torch.testing.assert_close(case.function(*wide), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_take_float32_weights_beside_16_bits(implementation, device, dtype):
    x, weight = torch.randn(4, 9, device=device, dtype=dtype), torch.randn(9, device=device, requires_grad=True)
    y = ops.rms_norm(x, weight)
    assert y.dtype == dtype
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(weight.grad.double(), expected.sum(0), rtol=1e-2, atol=1e-2)


def test_only_the_stream_of_an_added_norm_is_used(implementation, device):
    x, residual = (torch.randn(3, 5, device=device, requires_grad=True) for _ in range(2))
    _, stream = ops.add_rms_norm(x, residual)
    stream.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))
    torch.testing.assert_close(residual.grad, torch.ones_like(x))


def test_halves_of_one_tensor_go_into_swiglu_without_a_copy(implementation, device):
    both = torch.randn(4, 10, device=device, requires_grad=True)
    y = ops.swiglu(*both.chunk(2, -1))
    (grad,) = torch.autograd.grad(y.sum(), both)
    other = both.detach().clone().requires_grad_()
    gate, up = other.chunk(2, -1)
    want = F.silu(gate) * up
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), other)[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_follows_the_strides_of_heads_and_batches(implementation, device, interleaved):
    cos, sin = ops.angles(5, 6, device=device)  # of 8 features the last 2 stay
    whole = torch.randn(2, 3, 5, 4, 8, device=device)  # positions third
    for x in (whole[0].transpose(1, 2), whole.transpose(0, 1).transpose(2, 3), whole[..., 1, :], whole.flip(0)[:, 1:]):
        seq_dim = -2 if x.shape[-2] == 5 else -3
        got = ops.rotary(x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)
        with using("eager"):
            want = ops.rotary(x.contiguous(), cos, sin, seq_dim=seq_dim, interleaved=interleaved)
        torch.testing.assert_close(got, want)


def test_dense_strides_survive_gelu(implementation, device):
    x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last).requires_grad_()
    y = ops.gelu(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, F.gelu(x))
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(F.gelu(x).square().sum(), x)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.gelu(x, "sigmoid"), 'approximate "none" or "tanh"'),
        (lambda x: ops.softmax(x, 2), "dim within the 2 dimensions"),
        (lambda x: ops.rms_norm(x, torch.ones(4)), "shape of the last dimensions of x"),
        (lambda x: ops.rms_norm(x, torch.ones(5), eps=-1.0), "eps >= 0"),
        (lambda x: ops.layer_norm(x, None, torch.ones(5)), "bias only with a weight"),
        (lambda x: ops.layer_norm(x, torch.ones(5), torch.ones(3)), "needs bias in the shape"),
        (lambda x: ops.add_rms_norm(x, torch.ones(5)), "residual in the shape of x"),
        (lambda x: ops.swiglu(x, torch.ones(3, 4)), "up in the shape of gate"),
        (lambda x: ops.bias_gelu(x, torch.ones(3)), "bias in the shape of the last dimension"),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(3, 5))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: ops.swiglu(x, x.double()), "swiglu needs up in the dtype of gate"),
        (lambda x: ops.rms_norm(x, torch.ones(5, dtype=torch.bfloat16)), r"rms_norm needs .* or in float32"),
        (lambda x: ops.layer_norm(x, torch.ones(5, dtype=torch.bfloat16)), r"layer_norm needs .* or in float32"),
        (lambda x: ops.add_rms_norm(x, x.half()), "rms_norm needs residual in the dtype of x"),
        (lambda x: ops.bias_gelu(x, torch.ones(5, dtype=torch.float16)), r"bias_gelu needs .*dtype of|or in float32"),
    ],
)
def test_mixed_dtypes_are_refused(call, said):
    with pytest.raises(TypeError, match=said):
        call(torch.ones(3, 5))


def test_scalars_have_no_rows():
    for call in (ops.rms_norm, ops.layer_norm):
        with pytest.raises(ValueError, match="at least one dimension"):
            call(torch.tensor(1.0))
    with pytest.raises(ValueError, match="dim within"):
        ops.softmax(torch.tensor(1.0))
    assert ops.gelu(torch.tensor(0.0)).shape == ()


def test_positions_may_be_counted_from_the_front():
    x, (cos, sin) = torch.randn(2, 3, 5, 4), ops.angles(5, 4)
    assert torch.equal(ops.rotary(x, cos, sin, seq_dim=2), ops.rotary(x, cos, sin, seq_dim=-2))
    for last in (-1, 3):
        with pytest.raises(ValueError, match="before its last"):
            ops.rotary(x, cos, sin, seq_dim=last)
