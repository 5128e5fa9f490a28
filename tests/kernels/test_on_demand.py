import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from diagnose.kernels.fast_load import load_on_demand


class Tied(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, width), nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((1,), 2.0))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, expert):
        return self.norm(self.experts[expert](x))


def test_each_module_loads_with_its_first_call(tmp_path):
    model, x = Experts().eval(), torch.randn(3, 4)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    lazy, pending = load_on_demand(Experts, tmp_path / "m.pt")
    lazy.eval()
    assert all(p.is_meta for p in lazy.parameters())
    assert torch.equal(lazy(x, 1), model(x, 1))
    assert set(pending.names) == {f"experts.{i}.{n}" for i in (0, 2) for n in ("weight", "bias")}
    assert lazy.experts[0].weight.is_meta
    assert not lazy.experts[1]._forward_pre_hooks
    pending.load_rest()
    assert pending.names == ()
    for name, tensor in model.state_dict().items():
        assert torch.equal(lazy.state_dict()[name], tensor), name


def test_threads_that_call_at_once_all_find_the_weights(tmp_path):
    model, x = Experts().eval(), torch.randn(3, 4)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    for _ in range(5):
        lazy, _ = load_on_demand(Experts, tmp_path / "m.pt")
        lazy.eval()
        with ThreadPoolExecutor(8) as pool:
            assert all(torch.equal(out, model(x, 0)) for out in pool.map(lazy, [x] * 16, [0] * 16))


def test_ties_stay_and_everything_is_checked_at_once(tmp_path):
    state = Tied().state_dict()
    del state["head.weight"]
    torch.save(state, tmp_path / "m.pt")
    lazy, pending = load_on_demand(Tied, tmp_path / "m.pt", dtype=torch.float64)
    pending.load_rest()
    assert lazy.head.weight is lazy.embed.weight
    assert lazy.scale.dtype is torch.float64
    del state["scale"]
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="lacks scale"):
        load_on_demand(Tied, tmp_path / "m.pt")
    torch.save(Tied().state_dict(), tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"embed.weight has the shape \(16, 8\), not \(16, 4\)"):
        load_on_demand(lambda: Tied(width=4), tmp_path / "m.pt")


def test_distributed_checkpoints_are_refused(tmp_path):
    (tmp_path / ".metadata").touch()
    with pytest.raises(ValueError, match="is a distributed checkpoint, which is read at once; use fast_load"):
        load_on_demand(Tied, tmp_path)


class Reaching(nn.Module):
    """Uses weights of its parts without calling them."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(16, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.gate, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.gate.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, ids):
        x = self.embed(ids)
        x = self.mix(x, x, x, need_weights=False)[0]
        x = x @ self.gate.weight.T * self.gate.scale
        return nn.functional.linear(x, self.embed.weight)


@pytest.mark.parametrize("training", [False, True])
def test_weights_that_are_used_without_a_call_are_there(tmp_path, training):
    torch.manual_seed(0)
    model, ids = Reaching().train(training), torch.tensor([[1, 5, 2]])
    torch.save(model.state_dict(), tmp_path / "m.pt")
    lazy, pending = load_on_demand(Reaching, tmp_path / "m.pt")
    lazy.train(training)
    for one in (lazy, model):
        one.requires_grad_(training)
    assert all(p.is_meta and p.shape == q.shape for p, q in zip(lazy.parameters(), model.parameters(), strict=True))
    for _ in range(2):
        assert torch.equal(lazy(ids), model(ids))
    assert pending.names == ("unused.weight", "unused.bias")
    assert [name for name, module in lazy.named_modules() if module._forward_pre_hooks] == ["unused"]
    assert all(p.requires_grad is training for p in lazy.parameters())
    if training:
        lazy(ids).sum().backward()
        model(ids).sum().backward()
        assert torch.equal(lazy.gate.weight.grad, model.gate.weight.grad)


def test_a_fused_layer_finds_the_weights_of_its_parts(tmp_path):
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    lazy, pending = load_on_demand(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), tmp_path / "m.pt")
    with torch.no_grad():
        assert torch.equal(lazy.eval()(x), model(x))
    assert pending.names == ()


def test_a_saved_or_copied_model_has_its_weights(tmp_path):
    model = Experts()
    torch.save(model.state_dict(), tmp_path / "m.pt")
    lazy, pending = load_on_demand(Experts, tmp_path / "m.pt")
    first = lazy.experts[0].weight
    assert torch.equal(copy.deepcopy(lazy).experts[1].weight, model.experts[1].weight)
    state = lazy.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert pending.names == ()
    assert torch.equal(first + 0, model.experts[0].weight), "one that was looked up before stays the same weight"
    assert type(lazy.experts[0].weight) is nn.Parameter
