"""Patches that run the bundled modules: what they change from outside, and that they undo it."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from diagnose.changes import CHANGES, patch_of
from diagnose.changes.common.change import Log
from diagnose.kernels import _host_copies


@pytest.mark.parametrize("name", [n for n in CHANGES if patch_of(n) and patch_of(n).install])
def test_undoing_leaves_functions_as_they_were(name):
    names = [
        (torch, "save"), (torch, "compile"), (nn.Module, "compile"), (nn.Module, "zero_grad"),
        (torch.optim.Optimizer, "zero_grad"), (torch.optim.Optimizer, "__init__"), (functional, "cross_entropy"),
        (functional, "scaled_dot_product_attention"), (DataLoader, "__iter__"),
    ]  # fmt: skip
    before = [getattr(owner, attribute) for owner, attribute in names]
    patch_of(name).install(Log(), {})()
    assert [getattr(owner, attribute) for owner, attribute in names] == before


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def test_modules_run_the_bundled_operators(patched):
    log = patched("patch-operators")
    model, x = nn.Sequential(nn.Linear(4, 4), RMSNorm(4)), torch.randn(2, 4)
    shown = model(x)
    assert log.done == ["RMSNorm runs rms_norm"]
    assert isinstance(model[1].forward, functools.partial)
    torch.testing.assert_close(shown, RMSNorm(4)(model[0](x)))


def test_a_model_without_such_modules_is_left(patched):
    log = patched("patch-operators")
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert log.refused == ["a model without modules that an operator can replace"]


def test_the_loss_of_rows_runs_the_bundled_operator(patched):
    logits, target = torch.randn(5, 7), torch.randint(7, (5,))
    wanted = functional.cross_entropy(logits, target, label_smoothing=0.1)
    log = patched("fused-loss")
    torch.testing.assert_close(nn.CrossEntropyLoss(label_smoothing=0.1)(logits, target), wanted)
    assert log.done == ["F.cross_entropy runs cross_entropy"]
    functional.cross_entropy(logits, target, torch.ones(7))
    functional.cross_entropy(logits, logits.softmax(-1))
    assert log.refused == ["a cross entropy with weights, shares or further dimensions"]


def test_batches_are_loaded_on_a_thread(patched):
    log = patched("load-on-thread")
    loader = DataLoader(TensorDataset(torch.arange(6.0)), 2)
    assert [x.tolist() for (x,) in loader] == [[0, 1], [2, 3], [4, 5]]
    assert log.done == ["DataLoader: batches are loaded on a thread, two ahead"]


def test_workers_live_on(patched):
    log = patched("keep-workers")
    assert DataLoader([1], num_workers=1).persistent_workers is True
    assert DataLoader([1]).persistent_workers is False
    assert (len(log.done), log.refused) == (1, ["a DataLoader: it has no workers"])


def test_gradients_are_set_to_none(patched):
    log = patched("no-fills")
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(layer.parameters()).zero_grad(set_to_none=False)
    assert layer.weight.grad is None
    assert log.done == ["SGD.zero_grad(set_to_none=True)"]


def test_attention_runs_in_the_backends_that_are_asked_for(patched):
    q = torch.randn(1, 1, 4, 8)
    wanted = functional.scaled_dot_product_attention(q, q, q)
    log = patched("other-attention", backends=["efficient"])
    torch.testing.assert_close(functional.scaled_dot_product_attention(q, q, q), wanted)
    assert log.done == ["scaled_dot_product_attention in efficient, else written out"]


def test_a_script_s_own_compiling_is_made_dynamic(patched, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: given.append(options) or model)
    log = patched("stop-recompiling")
    torch.compile(nn.Linear(2, 2))
    torch.compile(nn.Linear(2, 2), dynamic=False)
    assert given == [{"dynamic": True}] * 2
    assert log.done == ["torch.compile(dynamic=True)"]


class NoCopies:
    def is_on_device(self, tensor):
        return True

    def out(self, tensor):
        return tensor.clone(), None

    def back(self, host, done, device):
        return host.clone(), None

    def hand_over(self, tensor, done):
        pass


@pytest.fixture
def without_device(monkeypatch):
    monkeypatch.setattr("diagnose.kernels.offload.SideCopies", NoCopies)
    assert _host_copies.SideCopies is not NoCopies


def test_activations_go_to_the_host_and_come_back(patched, without_device):
    x, model = torch.randn(600, 600), nn.Sequential(nn.Linear(600, 600), nn.Tanh())
    model(x).sum().backward()
    wanted = model[0].weight.grad.clone()
    model.zero_grad()
    log = patched("offload-activations")
    model(x).sum().backward()
    assert torch.equal(model[0].weight.grad, wanted)
    assert log.done == ["Sequential: activations go to the host until the backward pass"]


def test_the_optimizer_s_state_is_away_between_steps(patched, without_device):
    log = patched("offload-optimizer")
    layer = nn.Linear(600, 600)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        layer(torch.ones(1, 600)).sum().backward()
        optimizer.step()
    assert log.done == ["AdamW: its state is on the host between steps"]
    assert optimizer.state[layer.weight]["step"] == 2


def test_the_environment_is_cleared():
    assert patch_of("cache-device-memory").environment == {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": None,
        "PYTORCH_NO_HIP_MEMORY_CACHING": None,
    }
