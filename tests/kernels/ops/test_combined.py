"""Operators together with what a user's program combines them with: autocast, the compiler, checkpoints, transforms."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from diagnose.kernels.patching import patch

TOLERANCE = {"rtol": 4e-2, "atol": 4e-2}  # bfloat16 keeps 8 bits, and a gradient passes several roundings


def tensors(result):
    return list(result) if isinstance(result, tuple) else [result]


def differentiable(arguments):
    return [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]


def gradients(function, arguments):
    outputs = tensors(function(*arguments))
    loss = sum((o.float() * torch.linspace(-1, 2, o.numel(), device=o.device).reshape(o.shape)).sum() for o in outputs)
    return outputs, torch.autograd.grad(loss, differentiable(arguments))


def test_autocast_agrees_with_plain_pytorch(case, implementation, device):
    arguments = case.arguments(torch.float32)
    expected, expected_grads = gradients(case.reference, arguments)
    with torch.autocast(device, torch.bfloat16):
        outputs, grads = gradients(case.function, arguments)
    assert [g.dtype for g in grads] == [torch.float32] * len(grads), "of the inputs"
    for got, want in zip([*outputs, *grads], [*expected, *expected_grads], strict=True):
        torch.testing.assert_close(got.float(), want, **TOLERANCE)


def test_compiles_under_autocast(case, device):
    torch._dynamo.reset()
    arguments = case.arguments(torch.float32)
    compiled = torch.compile(case.function, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        outputs, grads = gradients(compiled, arguments)
        expected, expected_grads = gradients(case.function, arguments)
    assert [o.dtype for o in outputs] == [o.dtype for o in expected]
    torch.testing.assert_close([*outputs, *grads], [*expected, *expected_grads], **TOLERANCE)


@pytest.mark.full
def test_a_batched_operator_compiles(case):
    torch._dynamo.reset()
    arguments = case.arguments(torch.float32, grad=False)
    batch = torch.stack([arguments[0], arguments[0] * 0.5])

    def batched(x):
        return torch.vmap(lambda sample: case.function(sample, *arguments[1:]))(x)

    got, want = torch.compile(batched, fullgraph=True, backend="aot_eager")(batch), batched(batch)
    torch.testing.assert_close(tensors(got), tensors(want))


@pytest.mark.full
def test_a_compiled_graph_serves_other_sizes(case):
    torch._dynamo.reset()
    compiled = torch.compile(case.function, fullgraph=True, backend="aot_eager", dynamic=True)
    arguments = case.arguments(torch.float32, grad=False)
    num = arguments[0].shape[0]
    for size in (num, num - 1):
        fewer = [a[:size] if isinstance(a, torch.Tensor) and a.shape[0] == num else a for a in arguments]
        torch.testing.assert_close(tensors(compiled(*fewer)), tensors(case.function(*fewer)))


@pytest.mark.full
def test_exports_with_its_schema(case):
    class Model(nn.Module):
        def forward(self, *arguments):
            return case.function(*arguments)

    arguments = tuple(case.arguments(torch.float32, grad=False))
    exported = torch.export.export(Model(), arguments, strict=False)
    assert any("diagnose" in str(node.target) for node in exported.graph.nodes), "one operator, not its formula"
    torch.testing.assert_close(tensors(exported.module()(*arguments)), tensors(case.function(*arguments)))


def test_a_checkpoint_calculates_the_same_again(case):
    arguments = case.arguments(torch.float32)
    outputs, grads = gradients(lambda *given: checkpoint(case.function, *given, use_reentrant=False), arguments)
    expected, expected_grads = gradients(case.function, arguments)
    assert all(map(torch.equal, [*outputs, *grads], [*expected, *expected_grads]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch, for its own rules
def test_forward_mode_goes_through_the_formula(case):
    arguments = case.arguments(torch.float64, grad=False)
    direction = torch.ones_like(arguments[0])
    mine, theirs = (
        torch.func.jvp(lambda x, f=f: f(x, *arguments[1:]), (arguments[0],), (direction,))
        for f in (case.function, case.reference)
    )
    torch.testing.assert_close(tensors(mine[1]), tensors(theirs[1]), rtol=1e-8, atol=1e-9)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down_proj = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(RMSNorm(8), Gated(8), nn.Linear(8, 3))


def step_of(model, x):
    loss = model(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_patched_model_shares_its_state_with_a_plain_one(model):
    x, plain = torch.randn(4, 8), copy.deepcopy(model)
    assert len(patch(model).replaced) == 2
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(step_of(plain, x), step_of(model, x))
    fresh = copy.deepcopy(plain)
    patch(fresh)
    fresh.load_state_dict(plain.state_dict())
    assert all(map(torch.equal, step_of(fresh, x), step_of(model, x)))


def test_a_patched_model_is_a_function_of_its_parameters(model):
    x, plain = torch.randn(4, 8), copy.deepcopy(model)
    patch(model)

    def loss(parameters, sample, made=model):
        return torch.func.functional_call(made, parameters, (sample,)).square().mean()

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    want = torch.vmap(torch.func.grad(lambda p, s: loss(p, s, plain)), in_dims=(None, 0))(parameters, x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_a_patched_model_trains_in_ddp_under_autocast(model, tmp_path):
    x = torch.randn(4, 8)
    plain = copy.deepcopy(model)
    patch(model)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(model)
        with torch.autocast("cpu", torch.bfloat16):
            ddp(x).square().mean().backward()
    finally:
        dist.destroy_process_group()
    plain(x).square().mean().backward()
    for got, want in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, **TOLERANCE)
