"""What a script gives to torch.compile: which functions, and the call as a diff edits it."""

import functools

import pytest
import torch
from torch import nn

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.hooks import watch_compile


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        return self.lin(x)

    def log_prob(self, x):
        total = self.lin(x)
        return total.sum()


def helper(x):
    return x + 1


@pytest.fixture
def watched():
    """Return the calls that are taken down."""
    config = ScriptConfig()
    undo = watch_compile(config.compiles)
    yield config.compile_calls
    undo()


def test_of_a_module_its_forward_comes_first_and_then_its_other_methods(watched):
    torch.compile(Density(), backend="eager", dynamic=False)
    (call,) = watched
    assert (call.file, call.name) == (__file__, "Density")
    first = Density.log_prob.__code__.co_firstlineno
    assert [each[0] for each in call.functions] == ["forward", "log_prob"]
    assert call.functions[1] == ("log_prob", __file__, first, first + 2)
    assert call.text == 'torch.compile(Density(), backend="eager", dynamic=False)'
    assert (call.made.name, call.backend) == ("torch.compile", "eager")


def test_a_module_that_compiles_itself_is_the_target(watched):
    model = Density()
    model.compile(backend="eager")
    (call,) = watched
    assert (call.name, call.text) == ("Density", 'model.compile(backend="eager")')


def test_a_function_and_a_method_are_themselves(watched):
    torch.compile(helper, backend="eager")
    torch.compile(Density().log_prob, backend="eager")
    assert [(each.name, [f[0] for f in each.functions]) for each in watched] == [
        ("helper", ["helper"]),
        ("log_prob", ["log_prob"]),
    ]


def test_a_decorator_has_a_place_and_no_call(watched):
    compiled = functools.partial(torch.compile, backend="eager")

    @compiled
    def small(x):
        return x * 2

    (call,) = watched
    assert (call.name, call.made, call.text) == ("small", None, "")
    assert call.line == call.functions[0][2], "the line of the decorator"
    assert small(torch.ones(2)).tolist() == [2, 2]


def test_what_is_torch_s_or_switched_off_is_left_out(watched):
    torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    torch.compile(torch.add, backend="eager")
    torch.compile(helper, disable=True)
    assert watched == []


def test_the_same_call_is_taken_down_once(watched):
    for _ in range(3):
        torch.compile(helper, backend="eager")
    assert len(watched) == 1


def test_what_is_compiled_works_as_without_the_hook(watched):
    @torch.compile(backend="eager")
    def doubled(x):
        return x * 2

    assert doubled(torch.ones(2)).tolist() == [2, 2]
    assert [each.name for each in watched] == ["doubled"]
