"""What holds for every operator: torch's own checks, derivatives, batching, compiling, dtypes, strides, emptiness."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


def tensors(result):
    return list(result) if isinstance(result, tuple) else [result]


def differentiable(arguments):
    return [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]


def gradients(function, arguments):
    outputs = tensors(function(*arguments))
    loss = sum((o.double() * torch.linspace(-1, 2, o.numel(), device=o.device).reshape(o.shape)).sum() for o in outputs)
    return outputs, torch.autograd.grad(loss, differentiable(arguments))


# The last of torch's checks compiles, which takes most of the time; compiling has a test of its own below.
@pytest.mark.parametrize("without", [("test_aot_dispatch_dynamic",), pytest.param((), marks=pytest.mark.full)], ids=len)
def test_torch_accepts_the_operators(case, implementation, calls, without):
    outputs = tensors(case.function(*case.arguments()))
    sum(o.sum() for o in outputs if o.requires_grad).backward()
    assert len(calls) >= 2, "a forward and a backward pass"
    for definition, arguments in calls:
        detached = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in arguments]
        # What differs between implementations is whether they keep the schema; the rest is the operator's own.
        own = () if implementation == "triton" else ("test_autograd_registration", "test_aot_dispatch_dynamic")
        checks = [name for name in ("test_schema", "test_faketensor", *own) if name not in without]
        torch.library.opcheck(definition, tuple(detached), test_utils=checks)


def test_derivatives_are_right_to_second_order(case, implementation):
    arguments = case.arguments()
    assert gradcheck(case.function, arguments, fast_mode=implementation == "triton")
    if implementation == "eager":  # the backward pass of the backward pass is the formula's in both
        assert gradgradcheck(case.function, arguments, fast_mode=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: str(d).removeprefix("torch."))
def test_agrees_with_plain_pytorch(case, implementation, dtype):
    outputs, grads = gradients(case.function, case.arguments(dtype))
    precise = [
        a.detach().double().requires_grad_(a.requires_grad)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in case.arguments(dtype)
    ]
    expected, expected_grads = gradients(case.reference, precise)
    for got, want in zip([*outputs, *grads], [*expected, *expected_grads], strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])
    inputs = differentiable(case.arguments(dtype))
    assert [g.dtype for g in grads] == [a.dtype for a in inputs]


def test_strides_make_no_difference(case, implementation):
    arguments = case.arguments(torch.float32)
    spread = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            wide = torch.zeros(*argument.shape, 3, dtype=argument.dtype, device=argument.device)
            wide[..., 1] = argument.detach()
            strided = wide[..., 1].detach()
            spread.append(strided.requires_grad_(argument.requires_grad))
        else:
            spread.append(argument)
    (outputs, grads), (expected, expected_grads) = gradients(case.function, spread), gradients(case.function, arguments)
    torch.testing.assert_close([*outputs, *grads], [*expected, *expected_grads])


def test_expanded_gradients_are_read_right(case, implementation):
    arguments = case.arguments(torch.float32)
    one, two = (sum(o.sum() for o in tensors(f(*arguments))) for f in (case.function, case.reference))
    mine, theirs = (torch.autograd.grad(loss, differentiable(arguments)) for loss in (one, two))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_vmap_is_a_loop(case, implementation):
    arguments = case.arguments(torch.float32, grad=False)
    first = arguments[0]
    batch = torch.stack([first, first * 0.5, first - 1], 1)  # the batch is not the first dimension
    got = torch.vmap(lambda x: case.function(x, *arguments[1:]), in_dims=1)(batch)
    want = [case.function(batch[:, i].contiguous(), *arguments[1:]) for i in range(3)]
    for index, result in enumerate(tensors(got)):
        torch.testing.assert_close(result, torch.stack([tensors(w)[index] for w in want]))


def test_vmap_over_every_tensor_is_a_loop(case, implementation):
    arguments = case.arguments(torch.float32, grad=False)
    places = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.is_floating_point()]

    def call(*batched):
        values = list(arguments)
        for place, value in zip(places, batched, strict=True):
            values[place] = value
        return case.function(*values)

    batches = [torch.stack([arguments[p], arguments[p] * 0.5]) for p in places]
    got = torch.vmap(call)(*batches)
    want = [call(*[b[i] for b in batches]) for i in range(2)]
    for index, result in enumerate(tensors(got)):
        torch.testing.assert_close(result, torch.stack([tensors(w)[index] for w in want]))


def test_per_sample_gradients(case, implementation):
    arguments = case.arguments(torch.float64, grad=False)

    def loss(x):
        return sum(o.square().sum() for o in tensors(case.function(x, *arguments[1:])))

    batch = torch.stack([arguments[0], arguments[0] * 0.5])
    got = torch.vmap(torch.func.grad(loss))(batch)
    for row, sample in zip(got, batch, strict=True):
        x = sample.clone().requires_grad_()
        torch.testing.assert_close(row, torch.autograd.grad(loss(x), x)[0])


def test_compiles_into_one_graph_with_its_backward(case):
    torch._dynamo.reset()
    arguments = case.arguments(torch.float32)
    compiled = torch.compile(case.function, fullgraph=True, backend="aot_eager")
    (outputs, grads), (expected, expected_grads) = gradients(compiled, arguments), gradients(case.function, arguments)
    torch.testing.assert_close([*outputs, *grads], [*expected, *expected_grads])


def test_empty_tensors(case, implementation):
    arguments = case.arguments(torch.float32, grad=False)
    num = arguments[0].shape[0]
    emptied = [a[:0].clone() if isinstance(a, torch.Tensor) and a.shape[0] == num else a for a in arguments]
    emptied[0].requires_grad_()
    for got, want in zip(tensors(case.function(*emptied)), tensors(case.reference(*emptied)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)  # the mean of nothing is NaN
        (grad,) = torch.autograd.grad(got.sum(), emptied[0], retain_graph=True)
        assert grad.shape == emptied[0].shape


def test_meta_tensors_give_shapes(case):
    arguments = [a.detach().to("meta") if isinstance(a, torch.Tensor) else a for a in case.arguments(torch.float32)]
    real = tensors(case.function(*case.arguments(torch.float32)))
    for got, want in zip(tensors(case.function(*arguments)), real, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
        assert got.is_meta


@pytest.mark.parametrize("wrong", [torch.int64, torch.bool, torch.complex64])
def test_another_dtype_is_refused(case, wrong):
    arguments = case.arguments(torch.float32, grad=False)
    arguments[0] = arguments[0].to(wrong)
    with pytest.raises(TypeError, match=r"needs \w+ in "):
        case.function(*arguments)


def test_no_tensor_is_refused(case):
    arguments = case.arguments(torch.float32, grad=False)
    with pytest.raises(TypeError, match="needs a tensor as"):
        case.function(1.5, *arguments[1:])


def test_tensors_on_several_devices_are_refused(case):
    arguments = case.arguments(torch.float32, grad=False)
    places = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    for place in places[1:]:
        moved = list(arguments)
        moved[place] = moved[place].to("meta")
        with pytest.raises(ValueError, match="on one device"):
            case.function(*moved)
