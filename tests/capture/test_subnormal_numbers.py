"""Tensors that hold subnormal numbers."""

import numpy as np  # looked for among the imported modules
import pytest
import torch
from torch import nn

from diagnose.capture.record.subnormal_numbers import subnormal_tensors

assert np.float32


@pytest.fixture(autouse=True)
def keep_subnormals():
    """Keep what the tests make, whatever ran before in this process: a setting of the thread may take it for zero."""
    torch.set_flush_denormal(False)


def test_what_fades_below_the_smallest_normal_number_is_named_with_its_share():
    net = nn.Module()
    net.register_buffer("decay", torch.full((2, 4096), 0.5) ** torch.arange(4096))  # 2**-127 to 2**-149 are subnormal
    net.register_buffer("ones", torch.ones(8192))
    net.register_buffer("zeros", torch.zeros(8192))
    net.register_buffer("halves", torch.ones(8192, dtype=torch.float16))
    (found,) = subnormal_tensors([net, net])
    assert (found.name, found.shape, found.share) == ("buffer decay", (2, 4096), 23 / 4096)


def test_gradients_are_looked_at_too():
    net = nn.Linear(64, 64)
    net.weight.grad = torch.full((64, 64), 1e-40)
    assert [each.name for each in subnormal_tensors([net])] == ["gradient of weight"]
