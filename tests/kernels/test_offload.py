import copy
import gc

import pytest
import torch
from torch import nn

from diagnose.kernels._host_copies import fill, room_for
from diagnose.kernels.offload import ActivationOffload, offload_optimizer_state


class Apart:
    """Plays a device: what goes out is copied and its event must be waited for before it is used again."""

    def __init__(self):
        self.events, self.outs, self.backs = [], 0, 0

    def is_on_device(self, tensor):
        return not hasattr(tensor, "on_host")

    def out(self, tensor):
        host = room_for(tensor)
        fill(host, tensor)
        host.on_host = True
        self.outs += 1
        return host, ("out", self.outs)

    def back(self, host, done, device):
        assert done[0] == "out"
        assert host.on_host
        self.backs += 1
        self.events.append(f"back {done[1]}")
        tensor = room_for(host)
        fill(tensor, host)
        return tensor, ("back", done[1])

    def hand_over(self, tensor, done):
        assert done[0] == "back", "used before it was there"
        self.events.append(f"use {done[1]}")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


X = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))


def gradients(model, offload=None):
    if offload is None:
        loss = model(X).square().sum()
    else:
        with offload:
            loss = model(X).square().sum()
    loss.backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_same_gradients(ahead):
    device = Apart()
    offload = ActivationOffload(min_bytes=0, ahead=ahead, copies=device)
    for a, b in zip(gradients(Net(), offload), gradients(Net()), strict=True):
        assert torch.equal(a, b)
    assert device.outs == device.backs
    assert offload.num_bytes == device.outs * X.nbytes
    assert offload.restored >= device.outs


def test_each_tensor_goes_out_once_and_weights_stay():
    device = Apart()
    x = X.clone().requires_grad_()
    with ActivationOffload(min_bytes=0, copies=device) as offload:
        y = x * 2
        loss = (y * y).sum() + y.exp().sum() + (x @ nn.Parameter(torch.ones(16, 16)).t()).sum()
    assert device.outs == 3, "y, which one operator saves twice, the result of exp, and x; not the weight"
    loss.backward()
    assert offload.restored == 4


def test_an_address_that_is_used_again_is_another_tensor():
    x = torch.ones(1000, requires_grad=True)
    with ActivationOffload(min_bytes=0, copies=Apart()) as offload:
        losses = [(x * factor).square().sum() for factor in range(1, 9)]  # each product is freed at once
    assert offload.num_bytes == 8 * x.nbytes
    torch.stack(losses).sum().backward()
    assert x.grad[0] == 2 * sum(factor**2 for factor in range(1, 9))


def test_small_tensors_stay():
    device = Apart()
    gradients(Net(), ActivationOffload(min_bytes=X.nbytes + 1, copies=device))
    assert device.outs == 0
    gradients(Net(), ActivationOffload(min_bytes=X.nbytes, copies=device))
    assert device.outs > 0


def test_tensors_come_back_before_they_are_asked_for():
    eager, waiting = Apart(), Apart()
    early = ActivationOffload(min_bytes=0, ahead=2, copies=eager)
    gradients(Net(), early)
    late = ActivationOffload(min_bytes=0, ahead=0, copies=waiting)
    gradients(Net(), late)
    assert early.late == 1, "only the first one has nobody before it"
    assert late.late == waiting.backs
    first_use = eager.events.index(next(e for e in eager.events if e.startswith("use")))
    assert first_use == 3, eager.events


def test_a_graph_that_is_dropped_lets_go_of_the_host():
    offload = ActivationOffload(min_bytes=0, copies=Apart())
    with offload:
        loss = Net()(X).sum()
    assert len(offload._sent) > 0
    del loss
    gc.collect()
    assert len(offload._sent) == 0


def test_two_backward_passes_over_one_graph():
    offload = ActivationOffload(min_bytes=0, copies=Apart())
    model = Net()
    with offload:
        loss = model(X).sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for grad, p in zip(once, model.parameters(), strict=True):
        assert torch.equal(p.grad, 2 * grad)


class Block(nn.Module):
    """Attention whose queries, keys and values are parts of one product, and layers of its own size."""

    def __init__(self, width=32):
        super().__init__()
        self.product, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.layers = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())

    def forward(self, x):
        parts = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.product(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return self.layers(x) * x[:, :1, ::2].repeat_interleave(4, -1).expand(-1, x.shape[1], -1)


def test_attention_sends_no_more_than_save_on_cpu():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 16, 32)
    saved = []

    def keep(tensor):
        origin = tensor if tensor._base is None else tensor._base
        if not isinstance(origin, nn.Parameter):
            saved.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    offload = ActivationOffload(min_bytes=0, copies=Apart())
    with offload:
        loss = model(x).sum()
    loss.backward()
    assert 0 < offload.num_bytes <= sum(saved)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_strides_survive():
    device = Apart()
    x = torch.randn(6, 4).t().requires_grad_()
    with ActivationOffload(min_bytes=0, copies=device):
        y = x.exp()
    saved = y.grad_fn._saved_result
    assert saved.stride() == y.stride()
    assert torch.equal(saved, y)


def test_on_a_cpu_nothing_is_copied():
    offload = ActivationOffload(min_bytes=0)
    for a, b in zip(gradients(Net(), offload), gradients(Net()), strict=True):
        assert torch.equal(a, b)
    assert offload.num_bytes == 0


def trained(model, optimizer, steps=4):
    for _ in range(steps):
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def test_optimizer_state_lives_on_the_host_between_steps():
    mine, plain = Net(), Net()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01)
    device = Apart()
    state = offload_optimizer_state(optimizer, min_bytes=16 * 16 * 4, copies=device)
    theirs = trained(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    for a, b in zip(trained(mine, optimizer), theirs, strict=True):
        assert torch.equal(a, b)
    moments = [v for held in optimizer.state.values() for v in held.values() if v.numel() == 256]
    assert len(moments) == 8
    assert all(hasattr(v, "on_host") for v in moments)
    assert state.num_bytes == sum(v.nbytes for v in moments)
    assert device.backs == 8 * 3, "before each step but the first"
    state.undo()
    assert not any(hasattr(v, "on_host") for held in optimizer.state.values() for v in held.values())
    trained(mine, optimizer, 1)
    assert device.outs == 8 * 4


def test_checkpoints_of_offloaded_state_load():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    offload_optimizer_state(optimizer, min_bytes=0, copies=Apart())
    trained(model, optimizer, 2)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    expected = trained(model, optimizer, 2)
    expected = [e.clone() for e in expected]
    model.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    for a, b in zip(trained(model, optimizer, 2), expected, strict=True):
        assert torch.equal(a, b)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="min_bytes >= 0 and ahead >= 0, not -1 and 2"):
        ActivationOffload(min_bytes=-1)
    with pytest.raises(TypeError, match="takes a torch optimizer, not Linear"):
        offload_optimizer_state(nn.Linear(2, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    def peak(offload):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
        x = torch.randn(8192, 1024, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        with offload:
            loss = model(x).square().mean()
        held = torch.cuda.memory_allocated()
        loss.backward()
        return held, [p.grad.clone() for p in model.parameters()]

    torch.manual_seed(0)
    plain, expected = peak(ActivationOffload(min_bytes=1 << 40))
    torch.manual_seed(0)
    less, grads = peak(ActivationOffload())
    assert less < plain / 2
    for a, b in zip(grads, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_optimizer_state_on_a_gpu():
    torch.manual_seed(0)
    mine, plain = nn.Linear(1024, 1024).cuda(), nn.Linear(1024, 1024).cuda()
    plain.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.AdamW(m.parameters(), fused=True) for m in (mine, plain)]
    state = offload_optimizer_state(optimizers[0], min_bytes=0)
    for _ in range(4):
        for model, optimizer in zip((mine, plain), optimizers, strict=True):
            model(torch.ones(4, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert state.num_bytes > 8e6
    assert torch.equal(mine.weight, plain.weight)


def test_a_tensor_that_changed_goes_out_again():
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    with ActivationOffload(min_bytes=0, copies=Apart()):
        h = x * 1.0
        first = h.sin()
        h.mul_(2.0)
        second = h.sin()
    (first + second).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() + 2 * (2 * x.detach()).cos())
