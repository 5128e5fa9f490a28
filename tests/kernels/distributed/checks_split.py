"""Layers split over two ranks: equal to one process, or refused before anything is trained."""

import copy

import pytest
import torch
import torch.distributed as dist
from checks_sharding import adam, alike, compared, criterion, held
from setting import same_on_all_ranks
from torch import nn

from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.distributed.memory_estimate import estimate_memory
from diagnose.kernels.distributed.mesh import build_mesh
from diagnose.kernels.distributed.tensor_parallel import COMMON_PLAN, clip_gradients, tensor_parallel
from diagnose.kernels.ops import FusedAdamW, clip_factor
from diagnose.kernels.optimizers import best_implementation, best_optimizer
from diagnose.kernels.precision import Precision

PAIR = {r".*up_proj": "column", r".*down_proj": "row"}
CLIP = 0.05


def split(model, plan=PAIR, *shape, **options):
    """Split over both ranks, checked with a sample of a shape."""
    sample = (torch.randn(shape or (3, 16), generator=torch.Generator().manual_seed(5)),)
    return tensor_parallel(
        model, build_mesh("cpu", {"tensor": 2}), plan, **{"sample": sample, "data_ranks": 1} | options
    )


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        return x + self.down_proj(nn.functional.gelu(self.up_proj(x)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Feed(), Feed()])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def check_tensor_parallel_equals_one_process():
    alone = Deep()
    model = copy.deepcopy(alone)
    sides = split(model, COMMON_PLAN)
    assert sides == {f"blocks.{i}.{n}": s for i in range(2) for n, s in [("up_proj", "column"), ("down_proj", "row")]}
    assert model.blocks[0].up_proj.weight.to_local().shape == (12, 16)
    optimizer = adam(model.parameters())
    compared(model, optimizer, alone, share=lambda batch: batch).check(2e-4)
    estimate = estimate_memory(alone, "tensor", num_ranks=2, optimizer=torch.optim.AdamW)
    assert held(model.parameters(), optimizer) == [estimate.parameters, estimate.optimizer_state]


def check_tensor_parallel_refuses_before_it_changes_anything():
    model = nn.Sequential(nn.Linear(16, 15), nn.ReLU(), nn.Linear(15, 4), nn.MultiheadAttention(4, 1))
    for plan, error, text in [
        (COMMON_PLAN, ValueError, "write one"),
        ({"0": "column", "2": "row"}, ValueError, "15 columns of 0 cannot be split"),
        ({"1": "column"}, TypeError, "1 is a ReLU"),
        ({"2": "rows"}, ValueError, "'rows' for 2"),
        ({r"3\.out_proj": "row"}, TypeError, "nn.MultiheadAttention"),
    ]:
        with pytest.raises(error, match=text):
            split(model, plan)
    with pytest.raises(ValueError, match="its input would be whole"):
        split(Deep(), {r".*down_proj": "row"})
    with pytest.raises(ValueError, match=r"up_proj is split by columns.*its output would be a part"):
        split(Deep(), {r".*up_proj": "column"})
    with pytest.raises(ValueError, match="one dimension, not 2"):
        tensor_parallel(Deep(), build_mesh("cpu", {"replicate": 1, "tensor": 2}), sample=(), data_ranks=1)
    x = torch.ones(3, 16)
    for options, error, text in [
        ({"data_ranks": 2}, ValueError, "2 ranks in groups of 2 take 1 different batches at once, not 2"),
        ({"sample": x}, TypeError, r"write sample=\(x,\)"),
        ({"sample": (x * dist.get_rank(),)}, ValueError, "were given different batches"),
    ]:
        with pytest.raises(error, match=text):
            split(Deep(), **options)
    assert all(type(p) is nn.Parameter for p in model.parameters())


class Attention(nn.Module):
    """As OPT's and CLIP's, with a lone fc1 and GPT-2's names behind it."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out_proj = nn.Linear(16, 16)
        self.lone, self.mlp = nn.ModuleDict({"fc1": nn.Linear(16, 16)}), nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        heads = [p(x).view(len(x), -1, 4) for p in (self.q_proj, self.k_proj, self.v_proj)]
        x = self.out_proj(
            nn.functional.scaled_dot_product_attention(*(h.transpose(0, 1) for h in heads)).transpose(0, 1).flatten(1)
        )
        return self.mlp.c_proj(nn.functional.gelu(self.mlp.c_fc(self.lone["fc1"](x))))


def check_the_common_plan_splits_whole_pairs():
    torch.manual_seed(0)
    alone = nn.Sequential(Attention())
    model = copy.deepcopy(alone)
    sides = split(model, COMMON_PLAN)
    assert [name.removeprefix("0.") for name in sides] == (
        ["q_proj", "k_proj", "v_proj", "out_proj", "mlp.c_fc", "mlp.c_proj"]
    )
    compared(model, adam(model.parameters()), alone, share=lambda batch: batch).check(2e-4)


class Heads(nn.Module):
    """Attention, told the number of heads or the size of one; its parameters may serve all heads."""

    def __init__(self, shape, *, scaled=False, zeros=False, dropout=0.0):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(16, 16) for _ in range(4))
        self.shape, self.dropout = shape, nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.ones(())) if scaled else 1.0
        if zeros:
            nn.init.zeros_(self.out_proj.weight)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, *self.shape) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = nn.functional.scaled_dot_product_attention(*(h.transpose(1, 2) for h in (q * self.scale, k, v)))
        return self.dropout(self.out_proj(y.transpose(1, 2).reshape(batch, length, -1)))


def check_a_split_that_computes_something_else_is_refused_and_the_model_is_whole():
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    for options, text in [
        ({"shape": (4, -1)}, r"computes something else: (output 0|the gradient of 0\.\w_proj\.\w+) is"),
        ({"shape": (-1, 4), "scaled": True}, r"the gradient of 0\.scale is"),
        (
            {"shape": (-1, 4), "zeros": True},
            r"gives 0\.q_proj\.weight no gradient, so that its split cannot be checked",
        ),
        ({"shape": (2, 8)}, r"computes something else"),
    ]:
        torch.manual_seed(0)
        model = nn.Sequential(Heads(**options))
        before, weights = model(x), copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=text):
            split(model, COMMON_PLAN, 2, 5, 16)
        assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
        torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
        assert torch.equal(model(x + dist.get_rank() * 0), before)
    torch.manual_seed(0)
    model = nn.Sequential(Heads((-1, 4)))
    expected = model(x)
    assert len(split(model, COMMON_PLAN, 2, 5, 16)) == 4
    torch.testing.assert_close(model(x), expected)


def check_each_forward_refuses_different_batches():
    model = Deep()
    split(model)
    x = torch.ones(4, 16)
    for _ in range(2):
        assert same_on_all_ranks(model(x).detach())
    with pytest.raises(ValueError, match="were given different batches"):
        model(x + (dist.get_rank() == 1) * torch.eye(4, 16))
    swapped = torch.arange(32.0).view(2, 16)
    with pytest.raises(ValueError, match="were given different batches"):
        model(swapped.flip(0) if dist.get_rank() else swapped)
    assert same_on_all_ranks(model(x).detach())


def check_ranks_that_would_drop_different_places_are_refused_in_training_only():
    x = torch.ones(2, 5, 16)
    torch.manual_seed(dist.get_rank())
    model, without = nn.Sequential(Heads((-1, 4), dropout=0.5)), nn.Sequential(Heads((-1, 4)))
    split(model, COMMON_PLAN, 2, 5, 16)
    split(without, COMMON_PLAN, 2, 5, 16)
    without(x)
    with pytest.raises(ValueError, match="different dropout masks"):
        model(x)
    assert same_on_all_ranks(model.eval()(x).detach())
    torch.manual_seed(0)
    assert same_on_all_ranks(model.train()(x).detach())


def check_ranks_begin_with_the_parameters_of_the_first():
    torch.manual_seed(dist.get_rank())
    model = Deep()
    split(model)
    assert same_on_all_ranks(model.head.weight.detach())


def clipped_by_hand(model, optimizer):
    clip_gradients(model.parameters(), CLIP)
    optimizer.step()


def check_clipping_and_every_optimizer_take_split_and_whole_parameters():
    ways = {
        "plain": (adam, clipped_by_hand),
        "best": (lambda ps: best_optimizer(torch.optim.AdamW, ps, lr=1e-2), clipped_by_hand),
        "fused": (lambda ps: FusedAdamW(ps, lr=1e-2), lambda _, o: o.step(max_norm=CLIP)),
        "factor": (
            lambda ps: FusedAdamW(ps, lr=1e-2),
            lambda m, o: o.step(grad_scale=clip_factor(m.parameters(), CLIP)),
        ),
        "precision": (adam, lambda _, o: Precision("cpu", torch.float32).step(o, clip_norm=CLIP)),
    }
    for way, (optimizer_of, step) in ways.items():
        torch.manual_seed(0)
        alone = Deep()
        model = copy.deepcopy(alone)
        split(model)
        assert best_implementation(torch.optim.AdamW, model.parameters()) == "loop"
        groups = [
            {"params": [p for p in model.parameters() if hasattr(p, "to_local") == sharded]} for sharded in (0, 1)
        ]
        assert best_implementation(torch.optim.AdamW, groups) == "fused"
        optimizer, reference = optimizer_of(model.parameters()), adam(alone.parameters())
        for x, y in alike(3):
            criterion(model(x), y).backward()
            step(model, optimizer)
            optimizer.zero_grad()
            criterion(alone(x), y).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), CLIP)
            reference.step()
            reference.zero_grad()
        for (name, p), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
            whole = p.full_tensor() if hasattr(p, "full_tensor") else p
            torch.testing.assert_close(
                whole, expected, rtol=1e-5, atol=1e-5, msg=lambda m, n=name, w=way: f"{w} {n} {m}"
            )


def check_accumulation_clips_split_parameters():
    torch.manual_seed(0)
    alone = Deep()
    model = copy.deepcopy(alone)
    split(model)
    optimizer, reference = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone))
    accumulation = GradientAccumulation(model, optimizer, every=2, clip_norm=CLIP)
    data = alike(4)
    for x, y in accumulation.over(data):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(criterion(model(x), y))
    for first, second in zip(data[::2], data[1::2], strict=True):
        reference.zero_grad()
        x, y = (torch.cat(pair) for pair in zip(first, second, strict=True))
        criterion(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), CLIP)
        reference.step()
    torch.testing.assert_close(model.head.weight, alone.head.weight, rtol=1e-5, atol=1e-6)


def check_a_scaler_is_refused_before_anything_is_unscaled():
    model = Deep()
    split(model)
    optimizer, precision = adam(model.parameters()), Precision("cpu", torch.float16)
    (x, y), *_ = alike(1)
    precision.backward(criterion(model(x), y))
    with pytest.raises(ValueError, match="use bfloat16, which needs no scaler"):
        precision.step(optimizer)
