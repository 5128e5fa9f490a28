"""Blocks that change buffers as they run cannot be computed again."""

import pytest
import torch
from torch import nn

from diagnose.kernels.checkpointing import checkpoint_blocks


class Counting(nn.Module):
    """Keeps a running maximum of its own, as observers of quantisation and spectral norms do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.detach().max()) + 1)
        return self.inner(x) * self.largest


class Replacing(Counting):
    """The same, in a new tensor each time."""

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().max()) + 1
        return self.inner(x) * self.largest


@pytest.mark.parametrize("block", [Counting, Replacing])
def test_blocks_that_change_other_buffers_in_their_forward_are_refused(block):
    model = nn.Sequential(block(), block())
    checkpoint_blocks(model)
    with pytest.raises(RuntimeError, match=f"{block.__name__} changes its buffer 'largest' in the forward pass"):
        model(torch.ones(2, 4, requires_grad=True))
    with torch.no_grad():  # nothing is computed again there
        model(torch.ones(2, 4))
