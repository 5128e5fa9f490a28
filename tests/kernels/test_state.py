"""What was tried out leaves no trace, whatever it changed: the helper that every trial of a remedy goes through."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from diagnose.kernels._state import fingerprint, trial_passes, unchanged


def draws(generator=None):
    """Return the next number of each generator, without taking it."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    own = generator.get_state() if generator is not None else None
    found = [float(torch.rand(())), random.random(), float(np.random.rand())]
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    if generator is not None:
        found.append(float(torch.rand((), generator=generator)))
        generator.set_state(own)
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_generators_are_put_back(fails):
    generator = torch.Generator().manual_seed(3)
    before, seen = draws(generator), fingerprint()
    try:
        with unchanged(generators=[generator]):
            torch.rand(3), random.random(), np.random.rand(2), torch.rand(2, generator=generator)
            assert fingerprint() != seen
            assert all(a != b for a, b in zip(draws(generator), before, strict=True))
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert draws(generator) == before
    assert fingerprint() == seen


def trained():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).square().sum().backward()
    return model, optimizer


def held(model):
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    return [tensor.clone() for tensor in tensors], [module.training for module in model.modules()]


def same(one, other):
    return one[1] == other[1] and all(map(torch.equal, one[0], other[0]))


def test_models_and_optimizers_are_put_back():
    model, optimizer = trained()
    optimizer.step()
    before, parameters = held(model), list(model.parameters())
    moments = {p: {k: v.clone() for k, v in entry.items()} for p, entry in optimizer.state.items()}
    with unchanged(model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 7.0
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        model.eval()
        assert not same(held(model), before)
    assert same(held(model), before)
    assert all(map(lambda a, b: a is b, model.parameters(), parameters)), "the optimizer holds them"
    assert [group["lr"] for group in optimizer.param_groups] == [0.1]
    assert all(torch.equal(optimizer.state[p][k], v) for p, entry in moments.items() for k, v in entry.items())


def test_trial_passes_put_back_buffers_and_gradients():
    model, _ = trained()
    before, seen = held(model), fingerprint()
    with trial_passes(model):
        assert all(p.grad is None for p in model.parameters()), "gradients begin from none"
        model(torch.randn(4, 3)).sum().backward()
        assert not torch.equal(model[1].running_mean, before[0][4])
    assert same(held(model), before)
    assert fingerprint() == seen


def test_what_has_no_state_is_named():
    with pytest.raises(TypeError, match="can be put back, not object; leave it out"), unchanged(object()):
        pass
