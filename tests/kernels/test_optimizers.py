import copy

import pytest
import torch

from diagnose.kernels.optimizers import best_implementation, best_optimizer

WITH_FUSED = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
WITH_FOREACH = [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax]


class Quantised(torch.Tensor):
    """A tensor class of its own."""


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def trained(optimizer, net):
    for step in range(5):
        net(torch.full((4, 7), step / 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


def flags(optimizer):
    return optimizer.defaults.get("fused"), optimizer.defaults.get("foreach")


@pytest.mark.parametrize("cls", WITH_FUSED)
def test_fused_where_torch_has_it(cls):
    net = model()
    assert best_implementation(cls, net.parameters()) == "fused"
    assert flags(best_optimizer(cls, net.parameters(), lr=0.01)) == (True, False)


@pytest.mark.parametrize("cls", WITH_FOREACH)
def test_foreach_else_and_a_loop_where_memory_is_tight(cls):
    net = model()
    assert best_implementation(cls, net.parameters()) == "foreach"
    assert best_implementation(cls, net.parameters(), memory_tight=True) == "loop"
    assert flags(best_optimizer(cls, net.parameters(), lr=0.01)) == (None, True)
    assert flags(best_optimizer(cls, net.parameters(), lr=0.01, memory_tight=True)) == (None, False)


@pytest.mark.parametrize("cls", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_classes_with_neither_are_built_as_they_are(cls):
    net = model()
    assert best_implementation(cls, net.parameters()) == "loop"
    assert type(best_optimizer(cls, net.parameters(), lr=0.01)) is cls


@pytest.mark.parametrize("cls", [*WITH_FUSED, *WITH_FOREACH])
def test_trains_as_the_loop_does(cls):
    mine, plain = model(), model()
    best = trained(best_optimizer(cls, mine.parameters(), lr=0.01), mine)
    loop = trained(cls(plain.parameters(), lr=0.01, foreach=False), plain)
    for a, b in zip(best, loop, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not torch.equal(best[0], next(model().parameters())), "nothing was trained"


def test_choice_of_the_script_is_kept():
    net = model()
    assert flags(best_optimizer(torch.optim.AdamW, net.parameters(), fused=False)) == (False, True)
    assert flags(best_optimizer(torch.optim.AdamW, net.parameters(), foreach=True)) == (None, True)
    assert flags(best_optimizer(torch.optim.AdamW, net.parameters(), fused=False, foreach=False)) == (False, False)
    assert best_optimizer(torch.optim.AdamW, net.parameters(), differentiable=True).defaults["fused"] is None
    assert flags(best_optimizer(torch.optim.AdamW, net.parameters(), fused=None, foreach=None)) == (None, None)


def test_what_rules_the_fused_kernel_out_is_noticed():
    assert best_implementation(torch.optim.Adam, [torch.nn.Parameter(torch.ones(2))], foreach=False) == "fused"
    assert best_implementation(torch.optim.Adam, [torch.ones(2, dtype=torch.complex64)]) == "foreach"
    assert best_implementation(torch.optim.Adam, [torch.ones(2, device="meta")]) == "foreach"
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.complex64)]
    assert best_implementation(torch.optim.Adam, mixed) == "foreach"


def test_tensor_classes_of_their_own_are_left_to_the_loop():
    odd = torch.ones(2).as_subclass(Quantised)
    assert best_implementation(torch.optim.Adam, [odd]) == "loop"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_step_without_error(dtype):
    weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    best_optimizer(torch.optim.AdamW, [weight], lr=0.1).step()
    assert (weight < 1).all()


def test_groups_and_generators_arrive_whole():
    net = model()
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].weight}, {"params": [net[2].bias]}]
    optimizer = best_optimizer(torch.optim.SGD, (g for g in groups), lr=0.1)
    assert [len(g["params"]) for g in optimizer.param_groups] == [2, 1, 1]
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1, 0.1]
    assert all(g["fused"] for g in optimizer.param_groups)


def test_named_parameters_keep_their_names():
    optimizer = best_optimizer(torch.optim.SGD, model().named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_parameters_and_random_state_are_untouched_by_the_choice():
    net = model()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    best_optimizer(torch.optim.AdamW, net.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_errors_are_those_of_the_optimizer():
    with pytest.raises(ValueError, match="empty parameter list"):
        best_optimizer(torch.optim.AdamW, [])
    with pytest.raises(ValueError, match="Invalid learning rate"):
        best_optimizer(torch.optim.AdamW, model().parameters(), lr=-1.0)
    with pytest.raises(TypeError, match="put it into a list"):
        best_optimizer(torch.optim.AdamW, torch.ones(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_fused_on_a_gpu(cls):
    mine, plain = model().cuda(), model().cuda()
    optimizer = best_optimizer(cls, mine.parameters(), lr=0.01)
    assert flags(optimizer)[0]
    for a, b in ((mine, optimizer), (plain, cls(plain.parameters(), lr=0.01, foreach=False))):
        a(torch.ones(4, 7, device="cuda")).square().sum().backward()
        b.step()
    for a, b in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
