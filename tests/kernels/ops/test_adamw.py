"""The fused AdamW against torch's, on lists of tensors of many kinds."""

import copy
import importlib

import pytest
import torch
from torch import nn

from diagnose.kernels import ops
from diagnose.kernels.ops._adamw_step import _adamw

SHAPES = ((3, 5), (1,), (4, 4), (0, 2), (2, 3, 3), (50,))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Let one program update 16 elements, so that tensors take several."""
    if importlib.util.find_spec("triton") is not None:
        programs = importlib.import_module("diagnose.kernels.ops.triton_kernels.adamw")
        programs._chunks.cache_clear()
        monkeypatch.setattr(programs, "CHUNK", 16)
        monkeypatch.setattr(programs, "ELEMENTS", 8)
        yield
        programs._chunks.cache_clear()
    else:
        yield


def parameters(device, dtype=torch.float32, *, of=SHAPES):
    torch.manual_seed(3)
    return [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in of]


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        dtype = parameter.dtype if parameter.is_complex() else None
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype).to(parameter)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.3, "maximize": True}, {"betas": (0.8, 0.95), "eps": 1e-3}])
def test_several_steps_are_torchs(implementation, device, options):
    mine, theirs = parameters(device), parameters(device)
    one = ops.FusedAdamW(mine, lr=0.05, **options)
    other = torch.optim.AdamW(theirs, lr=0.05, **options)
    for step in range(4):
        for optimizer, tensors in ((one, mine), (other, theirs)):
            set_gradients(tensors, step)
            optimizer.step()
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_complex_parameters_are_stepped_as_torch_does(device, dtype, max_norm):
    mine, theirs = ([*parameters(device, dtype), *parameters(device)] for _ in range(2))
    one, other = ops.FusedAdamW(mine, lr=0.05), torch.optim.AdamW(theirs, lr=0.05)
    for step in range(4):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        if max_norm:
            factor = ops.clip_factor(mine, max_norm)
            norm = nn.utils.clip_grad_norm_(theirs, max_norm)
            torch.testing.assert_close(factor, max_norm / (norm.float() + 1e-6))
        one.step(max_norm=max_norm)
        other.step()
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)
    again = torch.optim.AdamW(theirs, lr=0.05)
    again.load_state_dict(one.state_dict())
    for a, b in zip(again.state.values(), other.state.values(), strict=True):
        torch.testing.assert_close(a["exp_avg"], b["exp_avg"], rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(a["exp_avg_sq"], b["exp_avg_sq"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_rounded_once(implementation, device, dtype):
    mine, precise = parameters(device, dtype), [p.detach().double() for p in parameters(device, dtype)]
    states = [
        [torch.zeros_like(p, dtype=torch.float64 if dtype == torch.float64 else torch.float32) for p in mine]
        for _ in "mv"
    ]
    set_gradients(mine, 0)
    ops.adamw_step([p.detach() for p in mine], [p.grad for p in mine], *states, step=1, lr=0.1)
    wide = [torch.zeros_like(p) for p in precise]
    ops.adamw_step(
        precise, [p.grad.double() for p in mine], wide, [torch.zeros_like(p) for p in precise], step=1, lr=0.1
    )
    for got, want in zip(mine, precise, strict=True):
        torch.testing.assert_close(got.detach(), want.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


def test_kinds_may_be_mixed(implementation, device):
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    mine = [torch.ones(5, device=device, dtype=dtype, requires_grad=True) for dtype in dtypes]
    set_gradients(mine, 1)
    ops.FusedAdamW(mine, lr=0.1, weight_decay=0.0).step()
    for parameter in mine:
        torch.testing.assert_close(parameter.double(), 1 - 0.1 * parameter.grad.double().sign(), rtol=1e-2, atol=1e-2)


def test_strides_are_followed(implementation, device):
    def made():
        torch.manual_seed(0)
        dense = torch.randn(4, 6, device=device).t().requires_grad_()
        spread = torch.randn(4, 6, device=device)[:, ::2].requires_grad_()
        for parameter in (dense, spread):
            parameter.grad = torch.randn(parameter.shape, device=device)  # of other strides than the parameter
        return [dense, spread]

    mine, theirs = made(), made()
    ops.FusedAdamW(mine, lr=0.1).step()
    torch.optim.AdamW(theirs, lr=0.1).step()
    torch.testing.assert_close(mine, theirs)


def test_parameters_without_gradients_rest_and_count_their_own_steps(implementation, device):
    mine, theirs = parameters(device), parameters(device)
    pairs = ((ops.FusedAdamW(mine, lr=0.05), mine), (torch.optim.AdamW(theirs, lr=0.05), theirs))
    for step in range(3):
        for optimizer, tensors in pairs:
            optimizer.zero_grad()
            set_gradients(tensors[: 2 + step], step)
            optimizer.step()
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)


def test_the_clip_factor_is_clipping(implementation, device):
    mine, theirs = parameters(device), parameters(device)
    for max_norm in (0.5, 1e6):
        set_gradients(mine, 5)
        set_gradients(theirs, 5)
        one, other = ops.FusedAdamW(mine, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
        one.step(grad_scale=ops.clip_factor(mine, max_norm))
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        other.step()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=3e-6)  # norms are summed in another order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_max_norm_is_clipping_of_all_groups_together(implementation, device, dtype):
    mine, theirs = parameters(device, dtype), parameters(device, dtype)
    groups = [[{"params": one[:2]}, {"params": one[2:], "lr": 0.05}] for one in (mine, theirs)]
    one, other = ops.FusedAdamW(groups[0], lr=0.1), torch.optim.AdamW(groups[1], lr=0.1)
    for step, max_norm in enumerate((0.5, 1e6, 3.0)):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        kept = [parameter.grad.clone() for parameter in mine]
        one.step(max_norm=max_norm)
        assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(mine, kept, strict=True))
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        other.step()
    loose = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-5}[dtype]
    torch.testing.assert_close(mine, theirs, rtol=loose, atol=loose)


def test_a_scale_goes_before_the_clipping(implementation, device):
    mine = [torch.zeros(2, device=device, requires_grad=True)]
    mine[0].grad = torch.tensor([300.0, 400.0], device=device)
    optimizer = ops.FusedAdamW(mine, lr=0.1)
    optimizer.step(max_norm=1.0, grad_scale=torch.tensor(0.01, device=device))  # (3, 4), of norm 5
    torch.testing.assert_close(optimizer.state[mine[0]]["exp_avg"].cpu(), torch.tensor([0.06, 0.08]))
    with pytest.raises(ValueError, match="max_norm > 0, not 0"):
        optimizer.step(max_norm=0.0)


def test_what_is_replaced_between_steps_is_used(implementation, device):
    """States, steps and memory that are others than at the last step: what was written down of them is not used."""
    mine, theirs = parameters(device, of=((3,), (2, 2))), parameters(device, of=((3,), (2, 2)))
    pairs = ((ops.FusedAdamW(mine, lr=0.1), mine), (torch.optim.AdamW(theirs, lr=0.1), theirs))
    for step in range(5):
        for optimizer, tensors in pairs:
            set_gradients(tensors, step)
            optimizer.step()
            state = optimizer.state[tensors[0]]
            if step == 1:
                tensors[1].data = tensors[1].data.clone()
            if step == 2:
                state["exp_avg"] = torch.ones_like(tensors[0])
            if step == 3:
                state["step"] = torch.tensor(1.0)
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)


def test_a_step_is_seen_by_the_graph(implementation, device):
    (parameter,) = parameters(device, of=((3,),))
    squared = parameter.square().sum()
    set_gradients([parameter], 0)
    ops.FusedAdamW([parameter], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_state_dicts_go_both_ways(device):
    model = nn.Linear(3, 2, device=device)
    model(torch.randn(4, 3, device=device)).sum().backward()
    first = torch.optim.AdamW(model.parameters(), lr=0.1)
    first.step()
    twin = copy.deepcopy(model)
    second = ops.FusedAdamW(twin.parameters(), lr=0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for tensors in (list(model.parameters()), list(twin.parameters())):
        set_gradients(tensors, 9)
    first.step()
    second.step()
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()))
    third = torch.optim.AdamW(twin.parameters(), lr=0.1)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    third.step()
    assert third.state_dict()["state"][0]["step"] == 3


def test_a_closure_gives_its_loss(device):
    parameter = torch.ones(3, device=device, requires_grad=True)
    optimizer = ops.FusedAdamW([parameter], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3
    assert (parameter < 1).all()


def test_schedulers_reach_it(device):
    parameter = torch.ones(1, device=device, requires_grad=True)
    optimizer = ops.FusedAdamW([parameter], lr=1.0, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(parameter.detach(), torch.zeros_like(parameter), atol=1e-5, rtol=0)


def test_torch_accepts_the_operator(device):
    tensors = [[torch.rand(3, device=device), torch.rand(2, 2, device=device)] for _ in range(4)]
    torch.library.opcheck(_adamw.definition, (*tensors, None, 1, 0.1, 0.9, 0.99, 0.01, 1e-8, False))


def test_sparse_gradients_are_refused_before_anything_changes():
    dense, table = torch.ones(2, requires_grad=True), nn.Embedding(3, 2, sparse=True)
    dense.grad = torch.ones(2)
    table(torch.tensor([1])).sum().backward()
    optimizer = ops.FusedAdamW([dense, table.weight])
    with pytest.raises(TypeError, match="no sparse gradients"):
        optimizer.step()
    assert dense.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"grads": []}, ValueError, "lists of 1, 0, 1 and 1"),
        ({"grads": [torch.ones(3)]}, ValueError, r"params\[0\] in its shape, \(2,\)"),
        ({"grads": [torch.ones(2, dtype=torch.float64)]}, TypeError, r"gradient of params\[0\] in torch.float32"),
        ({"params": [torch.ones(2, dtype=torch.int64)]}, TypeError, r"needs params\[0\] in one of"),
        ({"exp_avgs": [torch.ones(2, device="meta")]}, ValueError, "on one device"),
        ({"grad_scale": torch.ones(2)}, ValueError, "one floating number as grad_scale"),
        ({"step": 0}, ValueError, "step >= 1"),
        ({"betas": (1.0, 0.9)}, ValueError, "betas within 0 and 1"),
    ],
)
def test_what_does_not_fit_is_named(change, error, message):
    one = lambda: [torch.ones(2)]
    arguments = {"params": one(), "grads": one(), "exp_avgs": one(), "exp_avg_sqs": one(), "step": 1, "lr": 0.1}
    with pytest.raises(error, match=message):
        ops.adamw_step(**(arguments | change))


def test_clip_factor_names_what_is_missing():
    with pytest.raises(ValueError, match="no gradient"):
        ops.clip_factor([torch.ones(2, requires_grad=True)], 1.0)
    with pytest.raises(ValueError, match="max_norm > 0"):
        ops.clip_factor([], 0.0)


def test_amsgrad_is_refused_and_not_dropped():
    tensors = parameters("cpu")
    theirs = torch.optim.AdamW(tensors, amsgrad=True)
    set_gradients(tensors, 0)
    theirs.step()
    mine = ops.FusedAdamW(tensors)
    with pytest.raises(ValueError, match=r"FusedAdamW has no amsgrad.*torch\.optim\.AdamW\(amsgrad=True\)"):
        mine.load_state_dict(theirs.state_dict())
    assert not mine.state
    with pytest.raises(ValueError, match="has no amsgrad"):
        ops.FusedAdamW([{"params": tensors, "amsgrad": True}])
