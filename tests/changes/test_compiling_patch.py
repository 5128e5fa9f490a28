"""The patch that compiles the outermost module: it must compile, also where Module.compile() would do nothing."""

import pytest
import torch
from torch import nn

from diagnose.changes import CHANGES
from diagnose.changes.common.change import Log


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu()


@pytest.fixture
def seen(monkeypatch):
    """Return the graphs that are compiled, by a compiler that takes them down."""
    seen = []

    def backend(graph, _inputs):
        seen.append(graph)
        return graph.forward

    compile_for_real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_options: compile_for_real(call, backend=backend))
    return seen


@pytest.mark.parametrize("make", [Own, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
def test_the_outermost_module_is_compiled(make, seen):
    log = Log()
    undo = CHANGES["compile-model"].patch.install(log, {})
    try:
        model = make()
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
    finally:
        undo()
        torch._dynamo.reset()
    assert seen, "nothing was compiled"
    assert model._compiled_call_impl is None
    assert [line for line in log.done if "compile" in line]


@pytest.mark.parametrize("order", [("autocast", "compile-model"), ("compile-model", "autocast")])
def test_a_compiled_model_runs_under_autocast_in_one_graph(order, seen):
    """The hooks of autocast lie around what is compiled: within it they would part the graph, or fail."""
    torch.manual_seed(0)  # with other weights all results may be 0
    log, model = Log(), nn.Sequential(Own(), Own())
    undo = [CHANGES[name].patch.install(log, {}) for name in order]
    try:
        outputs = [model(torch.ones(3, 4)) for _ in range(3)]
    finally:
        for each in reversed(undo):
            each()
        torch._dynamo.reset()
    assert len(seen) == 1
    assert len(log.done) == 2
    assert all(torch.equal(outputs[0], output) for output in outputs)
    assert outputs[2].dtype == torch.float32
    assert not torch.equal(outputs[2], model(torch.ones(3, 4))), "the products were not in 16 bits"
