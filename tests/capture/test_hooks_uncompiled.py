"""What hooks call is not compiled, though a compiled function calls what they are at."""

import os

import pytest
import torch
from torch import nn

from diagnose.capture.steps.hooks import watch_optimizers


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_may_step_an_optimizer():
    model = nn.Linear(2, 2)
    optimizer, seen = torch.optim.SGD(model.parameters()), []

    def update():
        optimizer.step()
        optimizer.zero_grad()

    undo = watch_optimizers(lambda one: seen.append((one, os.getpid())), lambda: None)
    try:
        compiled = torch.compile(update, backend="eager")
        for _ in range(2):
            model(torch.ones(2)).sum().backward()
            compiled()
    finally:
        undo()
    assert seen == [(optimizer, os.getpid())] * 2
