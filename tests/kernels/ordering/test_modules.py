"""In modules with streams nothing is read, written or given out again before those who use it are through."""

import contextlib
import gc

import pytest
import torch
from torch import nn

from diagnose.kernels import deferred_metrics, prefetch
from diagnose.kernels._host_copies import SideCopies, stored_bytes
from diagnose.kernels.deferred_metrics import DeferredMetrics
from diagnose.kernels.offload import ActivationOffload, offload_optimizer_state
from diagnose.kernels.prefetch import DevicePrefetcher
from diagnose.kernels.step_graph import StepGraph, _CudaRecorder


class Opaque:
    """Moves itself, so that its tensor cannot be recorded with the allocator."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device, non_blocking=False):
        return Opaque(self.tensor.to(device, non_blocking=non_blocking))


def used(batch, weight):
    return (getattr(batch, "tensor", batch) * weight).sum()


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, Opaque], ids=["tensors", "objects"])
@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetcher(device, monkeypatch, wrap, ahead):
    monkeypatch.setattr(prefetch, "WITHOUT_STREAMS", frozenset())
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: False)
    weight = device.made(8)
    for batch in DevicePrefetcher((wrap(device.pinned(8)) for _ in range(8)), "meta", ahead=ahead):
        used(batch, weight)
        del batch  # while kernels that read it are queued


class Kept(torch.Tensor):
    """Stays where it is, such as lengths that the host reads."""

    def to(self, *_args, **_kwargs):
        return self


def test_what_stays_on_the_host_is_handed_over_as_it_is(device, monkeypatch):
    monkeypatch.setattr(prefetch, "WITHOUT_STREAMS", frozenset())
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: False)
    recorded = []  # torch raises for a tensor that is on no device
    monkeypatch.setattr(type(device), "record_stream", lambda self, tensor, stream: recorded.append(tensor.is_meta))
    lengths = torch.tensor([3, 4]).as_subclass(Kept)
    for batch in DevicePrefetcher([(device.pinned(8), lengths)] * 2, "meta"):
        assert batch[0].is_meta
        assert batch[1] is lengths
    assert recorded == [True, True]


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(SideCopies, "is_on_device", lambda self, tensor: tensor.is_meta)


def network():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, device="meta"), nn.GELU()) for _ in range(4)))


@pytest.mark.parametrize("ahead", [0, 2])
def test_offloaded_activations(device, everywhere, ahead):
    model, offload = network(), ActivationOffload(min_bytes=0, ahead=ahead)
    for _ in range(3):
        x = device.made(4, 8)
        with offload:
            loss = model(x * 2).square().sum()
        del x
        device.made(4, 8)
        loss.backward()
        del loss
        gc.collect()
    assert offload.restored > 12


@pytest.mark.parametrize("early", [False, True])
def test_offloaded_optimizer_state(device, everywhere, early):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    state = offload_optimizer_state(optimizer, min_bytes=0)
    for _ in range(4):
        model(device.made(4, 8)).sum().backward()
        if early:
            state.fetch()
        optimizer.step()
        optimizer.zero_grad()
    assert state.num_bytes > 0
    state.undo()
    model(device.made(4, 8)).sum().backward()
    optimizer.step()


def test_step_graph(device):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def whole_step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    step = StepGraph(whole_step, "meta", recorder=_CudaRecorder(torch.device("meta")), warm_up=3)
    for number in range(8):
        x = device.made(4, 8)
        loss = step(x)["loss"]
        x.mul_(2)
        loss.add_(1)
        model[0][0].weight.sum()
        del loss, x
        assert step.replays == max(0, number - 2), step.reason


def test_step_graph_warms_up_for_callers_on_several_streams(device):
    weight = device.made(4)
    step = StepGraph(lambda x: x * weight, "meta", recorder=_CudaRecorder(torch.device("meta")), warm_up=5)
    for stream in [device.Stream(), device.Stream()] * 2:
        stream.wait_stream(device.current_stream())
        with device.stream(stream):
            result = step(device.made(4))
            result.add_(1)
            del result


@pytest.mark.parametrize("finished", [False, True])
def test_deferred_metrics(device, monkeypatch, finished):
    monkeypatch.setattr(deferred_metrics, "WITH_EVENTS", frozenset({"meta"}))
    metrics, seen = DeferredMetrics(max_pending=2), 0
    for step in range(6):
        loss = device.made(())
        metrics.push(step, loss=loss, norm=loss * 2)
        loss.mul_(2)
        if finished:
            device.finish()
        seen += len(list(metrics.ready()))
    assert seen == (5 if finished else 4)
    assert len(list(metrics.drain())) == 6 - seen


# Values, of tensors that the fake device does not know


VIEWS = {
    "dense": lambda x: x,
    "turned": lambda x: x.t(),
    "expanded": lambda x: x[:1].expand(5, 6),
    "one value": lambda x: x[0, 0].expand(3, 2),
    "with gaps": lambda x: x[:, ::2],
    "far apart": lambda x: x[:, ::5],
    "a third": lambda x: x[:, 2:4],
    "with gaps, turned": lambda x: x[::3].t(),
    "with gaps, expanded": lambda x: x.view(1, 24)[:, ::12].expand(3, 2),
    "expanded in the middle": lambda x: x.unsqueeze(1).expand(4, 7, 6),
    "overlapping": lambda x: x.view(-1).unfold(0, 4, 2),
    "overlapping, with gaps": lambda x: x.as_strided((2, 2, 2), (1, 1, 20)),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[2, 3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_copies_keep_values_and_hold_what_is_read_only(device, view):
    x = view(torch.arange(24.0).view(4, 6))
    copies = SideCopies()
    host, done = copies.out(x)
    back, _ = copies.back(host, done, x.device)
    for copy in (host, back):
        assert torch.equal(copy, x)
        assert copy.untyped_storage().nbytes() <= min(x.untyped_storage().nbytes(), x.nbytes)
        assert copy.untyped_storage().nbytes() == stored_bytes(x)
    assert back.stride() == host.stride()
    if x.is_contiguous():
        assert back.is_contiguous()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_no_more_goes_out_than_by_save_on_cpu(device, monkeypatch, view):
    monkeypatch.setattr(SideCopies, "is_on_device", lambda self, tensor: True)

    def gradient(hooks):
        base, x = torch.arange(24.0).view(4, 6), view(torch.ones(4, 6)).contiguous().requires_grad_()
        with hooks:
            loss = (x.exp() * view(base)).sum()
        loss.backward()
        return x.grad

    offload = ActivationOffload(min_bytes=0)
    assert torch.equal(gradient(offload), gradient(contextlib.nullcontext()))
    saved = []
    torch_hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t)
    gradient(torch_hooks)  # what torch.autograd.graph.save_on_cpu copies of each: all elements
    assert 0 <= offload.num_bytes <= sum(saved)
    assert offload.restored == len(saved)


def test_expanded_activations_go_out_and_come_back(device, monkeypatch):
    monkeypatch.setattr(SideCopies, "is_on_device", lambda self, tensor: True)

    def gradient(offload):
        x = torch.arange(1.0, 5.0).requires_grad_()
        with offload:
            loss = (x.view(4, 1).exp().expand(4, 64) * torch.ones(4, 64).requires_grad_()).log().sum()
        loss.backward()
        return x.grad

    offload = ActivationOffload(min_bytes=0)
    assert torch.equal(gradient(offload), gradient(ActivationOffload(min_bytes=1 << 30)))
    assert offload.restored > 0
