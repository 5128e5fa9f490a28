"""More scripts that run on as if nothing were recorded: modes, subclasses, transforms, hooks, threads, ranks."""

import gc
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import jacrev, jvp
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map

from diagnose.capture.dataflow.window import DataflowWindow
from tests.capture.test_flow_undisturbed import Passing, mlp, run, training

pytestmark = pytest.mark.filterwarnings("ignore")


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Wrapped(torch.Tensor):
    """A script's own subclass that holds another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def inner(value):
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        return tree_map(lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value, result)


class Named(torch.Tensor):
    """A script's own subclass that only has another name."""


def program(loss=None, optimizer=torch.optim.AdamW, around=nullcontext, change=None, grad=True):
    """Return a program whose whole step runs in a context."""

    def make():
        model = mlp()
        if change is not None:
            change(model)
        updates = optimizer(model.parameters())

        def step():
            with around():
                out = model(torch.randn(6, 8))
                found = (loss or (lambda out: out.square().mean()))(out)
                if grad:
                    updates.zero_grad()
                    found.backward()
                    updates.step()
                return found.item()

        return step, model if grad else nn.ReLU()  # nothing changes it

    return make


def clamped(weight):
    weight.grad.clamp_(-1, 1)


def with_hooks(model):
    model[0].register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda _module, _args, out: out + 1)
    model[2].register_full_backward_hook(lambda _module, into, _out: tuple(each * 3 for each in into))
    model[2].weight.register_post_accumulate_grad_hook(clamped)


def own_generator():
    generator = torch.Generator().manual_seed(3)
    return training(mlp(), batch=lambda: torch.randn(6, 8, generator=generator))


def quantized(model):
    quantization = pytest.importorskip("torchao.quantization")
    nn.init.ones_(model[2].bias)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())


def of_a_subclass(out):
    wrapped = Wrapped(torch.randn(6, 4)).mul(2).exp()
    return (out * wrapped.inner).mean() + torch.randn(6, 4).as_subclass(Named).mul(2).sum().as_subclass(torch.Tensor)


def by_transforms(out):
    slope = jacrev(lambda x: x.sin().sum())(torch.randn(6, 4))
    _, ahead = jvp(torch.cos, (torch.randn(6, 4),), (torch.ones(6, 4),))
    return (out * slope * ahead).mean()


PROGRAMS = {
    "function mode": program(around=Functions),
    "dispatch mode entered and left within steps": program(around=Passing),
    "subclasses": program(of_a_subclass),
    "jacrev and jvp": program(by_transforms),
    "anomaly mode": program(around=torch.autograd.detect_anomaly),
    "hooks": program(change=with_hooks),
    "generator": own_generator,
    "foreach": program(optimizer=lambda weights: torch.optim.AdamW(weights, foreach=True)),
    "fused": program(optimizer=lambda weights: torch.optim.AdamW(weights, fused=True)),
    "differentiable": program(optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)),
    "no gradients": program(around=torch.no_grad, grad=False),
    "inference mode throughout": program(around=torch.inference_mode, grad=False),
    "quantized": program(around=torch.no_grad, change=quantized, grad=False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_and_random_states_are_those_of_a_plain_run(name):
    losses, state, drawn, versions, _ = run(PROGRAMS[name], record=False)
    recorded_losses, recorded_state, recorded_drawn, recorded_versions, flow = run(PROGRAMS[name], record=True)
    assert recorded_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(state, recorded_state, strict=True))
    assert recorded_drawn == drawn
    # Under any dispatch mode torch counts no version for an operator on a list of tensors that it runs one by one.
    assert recorded_versions == versions or name == "foreach"
    assert (flow.num_steps, [sentence for sentence in flow.left_out if "ended" in sentence]) == (2, [])
    names = [[operator.name for operator in flow.operators if operator.step == step] for step in (0, 1)]
    assert names[0] == names[1]
    assert len(names[0]) > 3
    assert not _get_current_dispatch_mode_stack()


def test_modes_that_the_script_leaves_meanwhile_leave_the_stack():
    """Steps often end inside a block, at the optimizer's step."""
    window = DataflowWindow()
    with Passing():
        torch.ones(2)
        window.start()
        torch.ones(3)
    torch.ones(4)
    window.end_step()
    with Passing() as own:
        torch.ones(5)
        window.stop()
        assert _get_current_dispatch_mode_stack() == [own]
    assert not _get_current_dispatch_mode_stack()
    assert [operator.writes[0].shape for operator in window.result().operators] == [(3,), (4,)]


def test_threads_of_the_script_run_on_and_are_said_to_be_left_out():
    model = mlp()
    found = []

    def work():
        model(torch.ones(6, 8)).sum().backward()
        found.append(model[0].weight.grad.clone())
        model.zero_grad()

    def in_a_thread():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    in_a_thread()
    with DataflowWindow() as window:
        in_a_thread()
        torch.ones(2)
        window.end_step()
    assert torch.equal(*found)
    assert any("threads" in sentence for sentence in window.result().left_out)
    with DataflowWindow() as window:
        work()
        window.end_step()
    assert not window.result().left_out


def test_a_full_collection_waits_until_the_steps_are_recorded():
    generations = []

    def noted(phase, found):
        if phase == "start":
            generations.append(found["generation"])

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # so that a few new objects are many among those that are left
    gc.callbacks.append(noted)
    gc.set_threshold(10, 1, 1)
    try:
        with DataflowWindow() as window:
            for _ in range(200):
                torch.ones(2)
            recorded = list(generations)
            gc.collect()
            asked_for = generations[-1]
        after = gc.get_threshold()
        with DataflowWindow() as window:
            gc.set_threshold(20, 2, 2)  # the script's own
        left = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(noted)
        gc.unfreeze()
    assert window.result().left_out == ()
    assert set(recorded) == {0, 1}
    assert (asked_for, after, left) == (2, (10, 1, 1), (20, 2, 2))


RANK = """
import sys
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from diagnose.capture.dataflow.window import DataflowWindow

kind, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def made():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "fsdp2":
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        for name, weight in list(model[0].named_parameters()):
            setattr(model[0], name, nn.Parameter(distribute_tensor(weight.detach(), mesh, [Shard(0)])))
        for name, weight in list(model[2].named_parameters()):
            setattr(model[2], name, nn.Parameter(distribute_tensor(weight.detach(), mesh, [Replicate()])))
    return model

def run(record):
    torch.manual_seed(0)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0 if kind == "dtensor" else rank)
    losses, window = [], None
    for number in range(6):
        if record and number == 3:
            window = DataflowWindow()
            window.start()
        batch = torch.randn(6, 8, generator=generator)
        if kind == "dtensor":
            batch = distribute_tensor(batch, mesh, [Replicate()])
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
        if window is not None and number in (3, 4):
            window.end_step()
            if number == 4:
                window.stop()
    weights = [(w.full_tensor() if isinstance(w, DTensor) else w).detach().clone() for w in model.parameters()]
    return losses, weights, torch.get_rng_state(), window and window.result()

losses, weights, state, _ = run(False)
recorded_losses, recorded_weights, recorded_state, flow = run(True)
assert losses == recorded_losses, (losses, recorded_losses)
assert all(torch.equal(one, other) for one, other in zip(weights, recorded_weights, strict=True))
assert torch.equal(state, recorded_state)
assert flow.num_steps == 2 and not any("ended" in each for each in flow.left_out), flow.left_out
names = [[each.name for each in flow.operators if each.step == step] for step in (0, 1)]
if kind == "ddp":  # what follows the collective runs on a thread of its own, or on this one if it is done by then
    names = [[name for name in each if name != "aten::copy_"] for each in names]
assert names[0] == names[1] and "aten::addmm" in names[0], names
print("collectives", sum(each.is_collective for each in flow.operators), *flow.left_out)
distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    "kind", ["ddp", *[pytest.param(kind, marks=pytest.mark.full) for kind in ("fsdp2", "dtensor")]]
)
def test_two_ranks_compute_what_they_compute_unrecorded(kind, tmp_path):
    if kind == "fsdp2" and torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 shards no model in the memory of the host")
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, str(script), kind, str(tmp_path / "store")]
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for rank in range(2)
    ]
    results = [process.communicate(timeout=120) for process in ranks]
    for process, (printed, errors) in zip(ranks, results, strict=True):
        assert process.returncode == 0, errors
        assert int(printed.split()[1]) > 0
        assert ("DTensor" in printed) == (kind != "ddp")
