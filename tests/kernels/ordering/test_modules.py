"""In modules with streams nothing is read, written or given out again before those who use it are through."""

import contextlib

import pytest
import torch

from diagnose.kernels import prefetch
from diagnose.kernels._host_copies import SideCopies, stored_bytes
from diagnose.kernels.offload import ActivationOffload
from diagnose.kernels.prefetch import DevicePrefetcher
from tests.kernels.ordering.scenarios import CASES


@pytest.mark.parametrize("run", [pytest.param(run, id=f"{module}-{name}") for module, name, run in CASES])
def test_accesses_are_ordered(monkeypatch, run):
    run(monkeypatch)


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
