"""A printed edit of a call, run, makes what the change's trial makes of the call as it stands."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from diagnose.changes import CHANGES
from diagnose.changes.common.call_arguments import passed, set_arguments
from diagnose.changes.common.change import SetArguments
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding

CASES = [
    ("fused-optimizer", "AdamW(params, foreach=True)"),
    ("fused-optimizer", "AdamW(\n    params,\n    lr=0.1,\n    foreach=True,  # faster\n)"),
    ("fused-optimizer", "AdamW(params, foreach = (True), lr=0.1)"),
    ("fused-optimizer", "AdamW(params, foreach=foreach, fused=False)"),
    ("fused-optimizer", "AdamW(params, **given)"),
    ("fused-optimizer", "SGD(params, 0.1, 0.9, capturable, foreach=True, weight_decay=0.1)"),
    ("fused-optimizer", "Adam(params, differentiable=True)"),
    ("foreach-optimizer", "RMSprop(params, foreach=False)"),
    ("foreach-optimizer", "RMSprop(params, differentiable=True)"),
    ("foreach-optimizer", "Adadelta(params, 1.0, 0.9, 1e-6, 0, False)"),
    ("foreach-optimizer", "Adam(params, fused=True)"),
    ("load-in-workers", "DataLoader(data, 4)"),
    ("load-in-workers", "DataLoader(data, 4, False, None, None, 0)"),
    ("load-in-workers", "DataLoader(data, num_workers=2, prefetch_factor=3)"),
    ("load-in-workers", "DataLoader(data, prefetch_factor=None, persistent_workers=False)"),
    ("load-in-process", "DataLoader(data, num_workers=2, persistent_workers=True, prefetch_factor=3, timeout=5)"),
    ("load-in-process", "DataLoader(data, 4, False, None, None, 2)"),
    ("load-in-process", "DataLoader(data)"),
    ("keep-workers", "DataLoader(data)"),
    ("keep-workers", "DataLoader(data, num_workers=0)"),
    ("keep-workers", "DataLoader(data, 4, False, None, None, 1)"),
    ("more-workers", "DataLoader(data, num_workers=1, prefetch_factor=None)"),
    ("more-workers", "DataLoader(data, shuffle=False)"),
]
OF_LOADER = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "batch_size")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine of few cores
@pytest.mark.parametrize(("name", "call"), CASES)
def test_the_edit_makes_what_the_trial_makes(name, call, patched):
    made = properties(evaluated(edited(name, call)))
    patched(name, workers=3)
    assert made == properties(evaluated(call))


def edited(name, call):
    """Return the call with the change, as a diff has it; as it is where the change leaves it alone."""
    edit, asked = CHANGES[name].edit, {"workers": 3}
    assert isinstance(edit, SetArguments)
    parameters = tuple(inspect.signature(evaluated(call.partition("(")[0])).parameters)
    keys = {"spread": ("foreach",)} if "**" in call else {}
    values, why = edit.of_call(passed(call, parameters, **keys), asked)
    text, how = set_arguments(call, values, parameters=parameters, **keys)
    assert how == ""
    return call if why else text


def evaluated(text):
    names = {name: getattr(torch.optim, name) for name in ("Adadelta", "Adam", "AdamW", "RMSprop", "SGD")}
    data = TensorDataset(torch.zeros(8, 1))
    params = list(nn.Linear(2, 2).parameters())
    given = {"foreach": True, "capturable": 0.0, "given": {"foreach": True}}
    return eval(text, {**names, **given, "DataLoader": DataLoader, "data": data, "params": params})


def properties(made):
    if isinstance(made, DataLoader):
        return {name: getattr(made, name) for name in OF_LOADER}
    return {name: value or None for name, value in made.defaults.items()}


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("AdamW(params, foreach=True)", "AdamW(params, fused=True)"),
        ("AdamW(foreach=True, params=params)", "AdamW(params=params, fused=True)"),
        ("SGD(params, lr=0.1, foreach=True, momentum=0.9)", "SGD(params, lr=0.1, momentum=0.9, fused=True)"),
        (
            "AdamW(\n    params,\n    foreach=True,  # faster\n    lr=0.1,\n)",
            "AdamW(\n    params,\n    # faster\n    lr=0.1,\n    fused=True,\n)",
        ),
        ("AdamW(\n    params,\n    foreach=(True)\n)", "AdamW(\n    params, fused=True\n)"),
    ],
)
def test_an_argument_that_contradicts_is_taken_out(call, after):
    assert edited("fused-optimizer", call) == after


def test_what_only_the_loop_computes_is_left_to_it():
    call = {"name": "Adam", "differentiable": True}
    assert prescribe(Finding("unfused-optimizer", "", 5e6, facts=call), 10e6) == []


@pytest.mark.parametrize("name", [n for n, c in CHANGES.items() if isinstance(c.edit, SetArguments)])
def test_the_places_of_arguments_are_those_of_this_torch(name):
    edit = CHANGES[name].edit
    owners = {
        "DataLoader": DataLoader,
        "DDP": DistributedDataParallel,
        "torch.compile": torch.compile,
        "set_detect_anomaly": torch.autograd.set_detect_anomaly,
    }
    for of in edit.of:
        owner = owners.get(of) or getattr(torch.optim, of, DistributedDataParallel)
        known = inspect.signature(owner.__init__ if isinstance(owner, type) else owner).parameters
        assert tuple(known)[1 : 1 + len(edit.parameters)] == edit.parameters
        assert {*edit.given, *edit.optional} <= {*known}


@pytest.mark.parametrize(
    ("facts", "before", "after"),
    [
        (
            {},
            "AdamW(params, lr=lr)",
            "AdamW(params, lr=lr, fused=True)   # in its constructor; the other arguments stay",
        ),
        (
            {"foreach": True, "num_groups": 2},
            "AdamW(params, lr=lr, foreach=True)",
            "AdamW(params, lr=lr, fused=True)   # in its constructor; the other arguments stay, without foreach",
        ),
    ],
)
def test_an_example_without_the_scripts_call_drops_none_of_its_arguments(facts, before, after):
    change = prescribe(Finding("unfused-optimizer", "", 5e6, facts={"name": "AdamW", **facts}), 10e6)[0]
    assert (change.before, change.after) == (f"optimizer = torch.optim.{before}", f"optimizer = torch.optim.{after}")
