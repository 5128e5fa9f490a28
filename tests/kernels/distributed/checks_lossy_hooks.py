"""Hooks that send part of the gradients and the rest later, on two ranks."""

import pytest
import torch
import torch.distributed as dist
from setting import gradients_of, hooked, same_on_all_ranks
from torch import nn


def check_largest_gradients_and_signs_learn_what_exact_ones_do():
    """Two ranks minimise the distance to their own targets: the exact gradients lead to the mean of both."""
    target = torch.linspace(-1, 1, 64) * (dist.get_rank() + 1)
    mean = torch.linspace(-1, 1, 64) * 1.5
    distances = {}
    for name, options in [
        ("top_k", {"density": 0.1}),
        ("one_bit", {"block": 8}),
        ("top_k", {"density": 0.1, "error_feedback": False}),
    ]:
        point = nn.Linear(64, 1, bias=False)
        nn.init.zeros_(point.weight)
        ddp, hook = hooked(name, point, warm_up=1, **options)
        optimizer = torch.optim.SGD(point.parameters(), lr=0.03)
        for step in range(200):
            optimizer.zero_grad()
            (ddp(torch.eye(64)).squeeze() - target).square().sum().div(2).backward()
            if step == 0:
                torch.testing.assert_close(point.weight.grad[0], -mean, msg="the first step warms up")
            optimizer.step()
        assert hook.step == 200
        assert same_on_all_ranks(point.weight.detach())
        distances[name, len(options)] = float((point.weight.detach()[0] - mean).norm() / mean.norm())
    with_errors, signs, without = distances.values()
    assert with_errors < 0.02, distances
    assert signs < 0.05, distances
    assert without > 3 * with_errors, distances


def check_what_was_not_sent_goes_through_a_checkpoint():
    for name, options in [
        ("top_k", {"density": 0.1, "warm_up": 1}),
        ("one_bit", {"block": 64, "warm_up": 1}),
        ("int8", {"block": 512}),
    ]:
        ddp, hook = hooked(name, **options)
        for _ in range(3):
            gradients_of(ddp)
        saved = hook.state_dict()
        expected = gradients_of(ddp)
        resumed, other = hooked(name, **options)
        gradients_of(resumed)  # of other buckets: DDP makes them anew after the first backward
        other.load_state_dict(saved)
        torch.testing.assert_close(gradients_of(resumed), expected, rtol=0, atol=1e-6)
        assert saved.get("step", 3) == 3
        with pytest.raises(ValueError, match="another hook's"):
            other.load_state_dict({"factors": {}})
        assert other.state_dict()["residuals"].keys() == saved["residuals"].keys()
