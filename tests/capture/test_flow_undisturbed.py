"""Scripts run on as if nothing were recorded: losses, weights, versions and random numbers stay as they are."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from diagnose.capture.dataflow.window import DataflowWindow

pytestmark = pytest.mark.filterwarnings("ignore")  # prototypes of torch, compilers


class Passing(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def training(model, loss=lambda out: out.square().mean(), batch=lambda: torch.randn(6, 8), around=nullcontext):
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        with around():
            found = loss(model(batch()))
        found.backward()
        optimizer.step()
        return found.item()

    return step, model


def in_place(out):
    buffer = torch.zeros(6, 8)
    buffer[:, :4] = out
    buffer[:, 4:].add_(1)
    return buffer.mul_(2).square().mean()


def inference(out):
    with torch.inference_mode():
        target = torch.randn(6, 4).argmax(-1)
    return functional.cross_entropy(out, target.clone())


def resized(out):
    memory = torch.randn(64)
    memory.untyped_storage().resize_(0)
    memory.untyped_storage().resize_(256)
    return out.square().mean() * memory.fill_(1.0).sum()


def of_numpy(out):
    array = np.full((6, 4), 2.0, np.float32)
    numbers = torch.from_numpy(array)
    array[:] = 3.0
    return (out * numbers).square().mean() * float(out.detach().numpy().sum() > -1e9)


def sparse(out):
    matrix = torch.eye(6).to_sparse()
    return (matrix @ out + torch.eye(6).to_sparse_csr() @ out).square().mean()


def nested(out):
    rows = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    jagged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    return out.square().mean() + torch.nested.to_padded_tensor(rows * 2, 0.0).sum() + (jagged * 2).values().sum()


def twice_differentiated():
    model = mlp()

    def loss(out):
        given = torch.randn(6, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
        return out.square().mean() + (slope.norm(2, 1) - 1).square().mean()

    return training(model, loss)


def per_sample():
    model = mlp()
    weights = dict(model.named_parameters())

    def loss(weights, sample):
        return functional_call(model, weights, (sample[None],)).square().mean()

    def step():
        detached = {name: weight.detach() for name, weight in weights.items()}
        found = vmap(grad(loss), (None, 0))(detached, torch.randn(6, 8))
        with torch.no_grad():
            for name, weight in weights.items():
                weight.sub_(0.1 * found[name].mean(0))
        return float(weights["0.weight"].sum())

    return step, model


def checkpointed(reentrant):
    inner, last = mlp(), nn.Linear(4, 4)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = inner, last

        def forward(self, x):
            return self.last(checkpoint(self.inner, x.requires_grad_(), use_reentrant=reentrant))

    return training(Checkpointed())


def under_a_mode():
    return training(mlp(), around=Passing)


def packed():
    return training(mlp(), around=torch.autograd.graph.save_on_cpu)


def autocast():
    return training(
        mlp(), lambda out: out.float().square().mean(), around=lambda: torch.autocast("cpu", torch.bfloat16)
    )


def recurrent():
    model = nn.LSTM(8, 8, num_layers=2, dropout=0.1)
    return training(model, lambda out: out[0].square().mean(), lambda: torch.randn(3, 5, 8))


def kept_forward(kind):
    return lambda: training(mlp(), kind)


PROGRAMS = {
    "plain": lambda: training(mlp()),
    "autocast": autocast,
    "compiled": lambda: training(torch.compile(mlp(), backend="aot_eager")),
    "scripted": lambda: training(torch.jit.trace(mlp(), torch.randn(6, 8))),
    "checkpoint": lambda: checkpointed(reentrant=False),
    "checkpoint, reentrant": lambda: checkpointed(reentrant=True),
    "autograd function": kept_forward(lambda out: Square.apply(out).mean()),
    "in place": kept_forward(in_place),
    "inference mode": kept_forward(inference),
    "resized storage": kept_forward(resized),
    "NumPy": kept_forward(of_numpy),
    "sparse": kept_forward(sparse),
    "nested": kept_forward(nested),
    "complex": kept_forward(lambda out: torch.fft.fft(out).conj().abs().mean()),
    "hook of a gradient": kept_forward(lambda out: (out.register_hook(lambda g: g * 2), out.exp().mean())[1]),
    "mode of the script": under_a_mode,
    "saved tensors' hooks": packed,
    "double backward": twice_differentiated,
    "vmap of grad": per_sample,
    "recurrent": recurrent,
}


def run(program, record):
    """Return all that a run of six steps leaves behind, and what was recorded of the third and fourth."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    step, model = program()
    window, losses = None, []
    for number in range(6):
        if record and number == 2:
            window = DataflowWindow()
            window.start()
        losses.append(step())
        if window is not None and number in (2, 3):
            window.end_step()
        if window is not None and number == 3:
            window.stop()
    state = [torch.get_rng_state(), *model.state_dict().values()]
    drawn = random.random(), float(np.random.rand())
    return losses, state, drawn, [each._version for each in model.parameters()], window and window.result()


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_and_random_states_are_those_of_a_plain_run(name):
    losses, state, drawn, versions, _ = run(PROGRAMS[name], record=False)
    recorded_losses, recorded_state, recorded_drawn, recorded_versions, flow = run(PROGRAMS[name], record=True)
    assert recorded_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(state, recorded_state, strict=True))
    assert (recorded_drawn, recorded_versions) == (drawn, versions)
    assert (flow.num_steps, [sentence for sentence in flow.left_out if "ended" in sentence]) == (2, [])
    names = [[operator.name for operator in flow.operators if operator.step == step] for step in (0, 1)]
    assert names[0] == names[1]
    assert len(names[0]) > 10
    assert all(operator.stack for operator in flow.operators)
    assert not _get_current_dispatch_mode_stack()


def test_a_compiled_model_runs_eagerly_and_then_as_before():
    torch._dynamo.reset()
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)
    model(torch.ones(2, 4))
    with DataflowWindow() as window:
        model(torch.ones(2, 4))
        window.end_step()
    model(torch.ones(2, 4))
    flow = window.result()
    modules = {operator.name: operator.module for operator in flow.operators}
    assert (modules["aten::addmm"], modules["aten::relu"]) == ("0", "1")
    assert any("eagerly" in sentence for sentence in flow.left_out)
    assert len(compiled) == 1


def test_operators_of_higher_order_are_opaque():
    """torch 2.13 fails to run a branch with one result eagerly where a gradient is taken of it."""
    weight = torch.ones(3, requires_grad=True)

    def step():
        torch.cond(weight.sum() > 0, lambda x: x.sin().sum(), lambda x: x.cos().sum(), (weight * 2,)).backward()

    step()
    with DataflowWindow() as window:
        step()
        window.end_step()
    branches = [operator for operator in window.result().operators if operator.name.endswith("::cond")]
    assert [(operator.phase, operator.is_opaque) for operator in branches] == [("forward", True), ("backward", True)]
    assert len(branches[0].reads) == 2
