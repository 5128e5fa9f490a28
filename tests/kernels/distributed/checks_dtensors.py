"""Operators and FusedAdamW on DTensors, on two ranks: what plain tensors give, and DTensors again."""

import copy

import pytest
import torch
import torch.distributed as dist
from setting import batches, network
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from diagnose.kernels import ops
from diagnose.kernels.distributed.fully_sharded import fully_sharded
from diagnose.kernels.distributed.mesh import build_mesh
from diagnose.kernels.ops import FusedAdamW, clip_factor

CLIP = 0.01
TARGET = torch.tensor([1, 2, 0, 3])
ANGLES = ops.angles(4, 8)


def shared(tensor, place, mesh):
    return distribute_tensor(tensor.detach().clone(), mesh, [place]).requires_grad_(tensor.is_floating_point())


def operators(constant):
    """Return each operator of tensors of (4, 8), those of its arguments after, which every rank has whole."""
    row, table = torch.randn(8), torch.randn(6, 8)
    cos, sin = map(constant, ANGLES)
    target = constant(TARGET)
    return {
        "gelu": (ops.gelu, []),
        "bias_gelu": (ops.bias_gelu, [row]),
        "softmax": (ops.softmax, []),
        "rms_norm": (ops.rms_norm, [row]),
        "layer_norm": (ops.layer_norm, [row, row]),
        "add_layer_norm": (lambda x, w: ops.add_layer_norm(x, x * 2, w), [row]),
        "add_rms_norm": (lambda x, w: ops.add_rms_norm(x, x * 2, w), [row]),
        "swiglu": (lambda x: ops.swiglu(x, x * 2), []),
        "rotary": (lambda x: ops.rotary(x, cos, sin), []),
        "scale": (lambda x: ops.scale(x, 0.5), []),
        "cross_entropy": (lambda x: ops.cross_entropy(x, target), []),
        "cross_entropy, rows": (lambda x: ops.cross_entropy(x, target, reduction="none"), []),
        "cross_entropy, three dimensions": (lambda x: ops.cross_entropy(x[None], target[None]), []),
        "linear_cross_entropy": (lambda x, w: ops.linear_cross_entropy(x, w, target, chunk=2), [table]),
    }


def results_and_gradients(function, tensors):
    results = function(*tensors)
    whole = [
        r.full_tensor() if isinstance(r, DTensor) else r
        for r in (results if isinstance(results, tuple) else (results,))
    ]
    sum((r * torch.arange(r.numel()).cos().view_as(r)).sum() for r in whole).backward()
    return whole, [t.grad.full_tensor() if isinstance(t.grad, DTensor) else t.grad for t in tensors]


def check_operators_take_dtensors():
    mesh = build_mesh("cpu", {"data": 2})
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    for place in (Shard(0), Shard(1), Replicate()):
        plain = operators(lambda t: t)
        sharded = operators(lambda t: distribute_tensor(t, mesh, [Replicate()]))
        assert {n.split(",")[0] for n in plain} == set(ops.__all__) - {
            "FusedAdamW", "adamw_step", "clip_factor", "angles", "using"
        }  # fmt: skip
        for name, (function, others) in plain.items():
            mine = [t.detach().clone().requires_grad_() for t in (x, *others)]
            parts = [shared(x, place, mesh), *(shared(t, Replicate(), mesh) for t in others)]
            expected, found = results_and_gradients(function, mine), results_and_gradients(sharded[name][0], parts)
            torch.testing.assert_close(found, expected, msg=lambda m, n=name, p=place: f"{n} {p}: {m}")


def check_fused_adamw_steps_sharded_parameters_as_torch_does():
    mesh = build_mesh("cpu", {"shard": 2})
    for max_norm in (None, CLIP):
        alone = network(width=7)  # the second rank's part is smaller
        models = [fully_sharded(copy.deepcopy(alone), mesh, blocks=nn.Linear) for _ in range(2)]
        ours, theirs = FusedAdamW(models[0].parameters(), lr=0.01), torch.optim.AdamW(models[1].parameters(), lr=0.01)
        for x, y in batches(4):
            for model in models:
                nn.functional.cross_entropy(model(x), y).backward()
            if max_norm:
                factor = clip_factor(models[0].parameters(), max_norm)
                norm = nn.utils.clip_grad_norm_(models[1].parameters(), max_norm).full_tensor()
                torch.testing.assert_close(factor, max_norm / (norm + 1e-6))
            ours.step(max_norm=max_norm)
            theirs.step()
            ours.zero_grad(), theirs.zero_grad()
        for a, b in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(a.full_tensor(), b.full_tensor(), rtol=1e-6, atol=1e-7)
        loaded = torch.optim.AdamW(models[1].parameters(), lr=0.01)
        loaded.load_state_dict(ours.state_dict())
        for a, b in zip(ours.state.values(), theirs.state.values(), strict=True):
            torch.testing.assert_close(a["exp_avg_sq"].full_tensor(), b["exp_avg_sq"].full_tensor())


def check_a_step_is_seen_by_what_autograd_has_saved():
    mesh = build_mesh("cpu", {"shard": 2})
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    optimizer = FusedAdamW([weight])
    x = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]).requires_grad_()
    (x @ weight).sum().to_local().backward(retain_graph=True)
    result = (x @ weight).sum().to_local()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    assert dist.get_world_size() == 2


def check_operators_take_dtensors_where_torch_compiles():
    x = distribute_tensor(torch.randn(4, 8), build_mesh("cpu", {"data": 2}), [Shard(0)])
    for function in (ops.gelu, ops.rms_norm):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x).full_tensor(), function(x).full_tensor())
