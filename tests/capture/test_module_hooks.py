"""Hooks of modules that are registered again and again."""

import functools

import pytest
import torch
from torch import nn

from diagnose.capture.steps.module_hooks import ModuleHooks


class Run:
    """Steps of a script, with its hooks watched."""

    def __init__(self):
        self.step = 0
        self.hooks = ModuleHooks(lambda: self.step)

    def steps(self, act, num=3):
        undo = self.hooks.watch()
        try:
            for self.step in range(num):
                act()
        finally:
            undo()
        return self.hooks.records


@pytest.fixture
def run():
    return Run()


def note(_module, _inputs, output):
    return output


def test_hooks_that_stay_are_counted(run):
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]

    def act():
        for layer in layers:
            layer.register_forward_hook(note)

    (record,) = run.steps(act)
    assert (record.num, record.modules, record.steps, record.hook_name) == (6, 2, 3, "note")
    assert record.function == "act"


@pytest.mark.parametrize("hook", [functools.partial(note), nn.Identity()])
def test_partials_and_callable_objects_are_hooks(run, hook):
    layer = nn.Linear(2, 2)
    (record,) = run.steps(lambda: layer.register_forward_hook(hook))
    assert record.num == 3


def test_hooks_that_are_removed_leave_nothing(run):
    layer = nn.Linear(2, 2)

    def act():
        handle = layer.register_forward_hook(note)
        layer(torch.zeros(2))
        handle.remove()

    assert run.steps(act) == ()


def test_one_hook_for_each_new_module_leaves_nothing(run):
    assert run.steps(lambda: nn.Linear(2, 2).register_forward_hook(note)) == ()


def test_several_hooks_of_one_step_leave_nothing(run):
    layer = nn.Linear(2, 2)
    assert run.steps(lambda: [layer.register_forward_hook(note) for _ in range(3)], num=1) == ()


def test_registering_is_put_back(run):
    before = nn.Module.register_forward_hook
    run.steps(lambda: None)
    assert nn.Module.register_forward_hook is before
