import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from diagnose.kernels.eight_bit import eight_bit_adamw, estimate, is_available, state_bytes, take_over
from diagnose.kernels.parity import check_parity

pytestmark = pytest.mark.filterwarnings("ignore")  # both packages import with warnings of their own


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.hidden = nn.Embedding(128, 64), nn.Linear(64, 256)
        self.head = nn.Linear(256, 128, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.embed(x))))


BIG = 64 * 256 + 256 * 128


def trained(model, optimizer, steps=40):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randint(128, (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), (x * 7) % 128)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


@pytest.fixture(params=["bitsandbytes", pytest.param("torchao", marks=pytest.mark.full)])  # torchao compiles
def backend(request):
    if not is_available(request.param):
        pytest.skip(f"the {request.param} package is not installed")
    return request.param


def test_estimate():
    seen = estimate(Net())
    assert seen.bytes_before == 8 * (BIG + 128 * 64 + 256)
    assert seen.bytes_after == 2 * BIG + 2 * BIG // 256 * 4 + 8 * (128 * 64 + 256)
    assert seen.kept == ("embed.weight",)
    assert "AdamW's state takes 0.5 MB, and 0.2 MB in 8 bits" in str(seen)
    everything = estimate(Net(), keep=())
    assert everything.kept == ()
    assert everything.bytes_after < seen.bytes_after
    assert estimate(Net().requires_grad_(False)).bytes_before == 0
    odd = estimate(nn.Linear(4097, 1, bias=False))  # 17 blocks of 256, the last of one value
    assert (odd.bytes_before, odd.bytes_after) == (8 * 4097, 2 * (4097 + 17 * 4))


def test_trains_like_32_bits(backend):
    mine, plain = Net(), Net()
    optimizer = eight_bit_adamw(mine, lr=3e-3, backend=backend)
    reference = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    start = trained(Net(), torch.optim.SGD([torch.zeros(1)], lr=0.1), 1)
    loss, expected = trained(mine, optimizer), trained(plain, reference)
    assert expected < 0.9 * start, "the reference does not learn"
    assert loss == pytest.approx(expected, rel=0.05)
    measured = state_bytes(optimizer)
    seen = estimate(mine)
    assert state_bytes(reference) == pytest.approx(seen.bytes_before, rel=0.01)
    assert measured == pytest.approx(seen.bytes_after, rel=0.03), "tables and steps aside"
    moments = [v for v in optimizer.state[mine.embed.weight].values() if isinstance(v, torch.Tensor) and v.dim() == 2]
    assert len(moments) == 2
    assert all(type(m) is torch.Tensor and m.dtype == torch.float32 for m in moments), "embeddings stay in 32 bits"


def test_takes_over_the_moments_of_a_run(backend):
    plain = Net()
    reference = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    trained(plain, reference, 20)
    fresh, mine = copy.deepcopy(plain), copy.deepcopy(plain)
    state = {m: reference.state[p] for m, p in zip(mine.parameters(), plain.parameters(), strict=True)}
    optimizer = eight_bit_adamw(mine, lr=3e-3, backend=backend)
    take_over(optimizer, state)
    cold = eight_bit_adamw(fresh, lr=3e-3, backend=backend)
    before = [p.detach().clone() for p in plain.parameters()]
    for model, stepping in ((plain, reference), (mine, optimizer), (fresh, cold)):
        trained(model, stepping, 1)

    def away(model):
        moves = [(p - b, q - b) for p, q, b in zip(model.parameters(), plain.parameters(), before, strict=True)]
        return sum((a - b).square().sum() for a, b in moves) / sum(b.square().sum() for _, b in moves)

    assert away(mine) < 0.02
    assert away(fresh) > 10 * away(mine), "an optimizer without the moments moves elsewhere"
    with pytest.raises(ValueError, match="already has its own state"):
        take_over(optimizer, state)


def test_groups(backend):
    model = Net()
    groups = [{"params": [model.hidden.weight], "lr": 0.5}, {"params": [model.head.weight]}]
    optimizer = eight_bit_adamw(model, groups, lr=0.1, weight_decay=0.0, backend=backend)
    assert [float(g["lr"]) for g in optimizer.param_groups] == [0.5, pytest.approx(0.1)]


def test_states_of_other_optimizers_are_refused():
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"not an Adam state; pass adamw.state"):
        take_over(torch.optim.SGD([weight]), {weight: {"momentum_buffer": weight}})


def test_without_the_packages(monkeypatch):
    monkeypatch.setattr("diagnose.kernels.eight_bit.find_spec", lambda _: None)
    assert not is_available()
    with pytest.raises(ModuleNotFoundError, match="pip install bitsandbytes"):
        eight_bit_adamw(Net(), lr=0.1)
    with pytest.raises(ModuleNotFoundError, match="needs the package torchao"):
        eight_bit_adamw(Net(), lr=0.1, backend="torchao")
    with pytest.raises(ValueError, match="Invalid backend 'fast': use bitsandbytes or torchao"):
        eight_bit_adamw(Net(), lr=0.1, backend="fast")


class Codes(torch.Tensor):
    """A moment in 8 bits in the form of torchao's: inner tensors, and no operator but the ones that it names."""

    def __new__(cls, codes, scale, signed):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale, signed):
        self.codes, self.scale, self.signed = codes, scale, signed

    def __tensor_flatten__(self):
        return ["codes", "scale"], [self.signed]

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size=None, outer_stride=None):
        return cls(inner["codes"], inner["scale"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"attempting to run unimplemented operator {func}")


class Stepping(torch.optim.Optimizer):
    """Adds what it counts in codes to each weight."""

    def step(self):
        for p in self.param_groups[0]["params"]:
            held = self.state[p].setdefault("exp_avg", Codes(torch.zeros(2, dtype=torch.uint8), torch.ones(1), True))
            held.codes.add_(1)
            p.data.add_(held.codes.float() * held.scale)


def test_trials_put_moments_of_a_tensor_class_back():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Stepping([weight], {})
    optimizer.step()

    def train_step(_):
        optimizer.step()
        return weight.sum()

    parity = check_parity(train_step, [0, 1], state=[nn.ParameterList([weight]), optimizer], reference=nullcontext)
    assert parity.losses == parity.reference == (6.0, 12.0)
    held = optimizer.state[weight]["exp_avg"]
    assert (held.codes.tolist(), held.signed, weight.tolist()) == ([1, 1], True, [1.0, 1.0])


def test_parity_of_an_optimizer_that_has_stepped(backend):
    model = Net()
    optimizer = eight_bit_adamw(model, lr=3e-3, backend=backend)
    trained(model, optimizer, 2)

    def train_step(x):
        return trained(model, optimizer, 1)

    parity = check_parity(train_step, [0, 1], state=(model, optimizer), reference=nullcontext)
    assert parity.losses == parity.reference
    assert parity.losses[0] == trained(model, optimizer, 1), "the state was not put back"
