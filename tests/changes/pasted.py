"""Printed code pasted into a script: what of it runs, and what comes out of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.changes.user_script import GIVEN, Names, Rows, Stream

RESULT = "_"
SHELL = ("rocm-smi ", "nvidia-smi ", "ibstat")


def is_python(text: str) -> bool:
    """Return whether a printed text is Python, and not commands of a shell."""
    if text.startswith(SHELL):
        return False  # which Python may read as a difference of names
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def is_prose(text: str) -> bool:
    """Return whether a printed text is Python of nothing but comments."""
    return not ast.parse(text).body


def run(text: str, names: Names, title: str) -> list[str]:
    """Run a printed text as part of a script, with what it defines, and return its lines that did not run.

    The value of a last expression becomes the name ``RESULT``.
    """
    tree = ast.parse(text)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        named = ast.Assign([ast.Name(RESULT, ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(named, last))
    ran: set[int] = set()

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != title:
            return None
        ran.add(frame.f_lineno)
        return trace

    traced_before = sys.gettrace()
    torch.manual_seed(1)
    sys.settrace(trace)
    try:
        exec(compile(tree, title, "exec"), names)
        use(names)
    finally:
        sys.settrace(traced_before)
    return [line for first, last, line in statements(tree, text) if ran.isdisjoint(range(first, last + 1))]


def statements(tree: ast.Module, text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the first and the last line of each statement, of one that holds others that of its head, and its text."""
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and ast.unparse(node) != "...":
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            yield node.lineno, max(last, node.lineno), lines[node.lineno - 1]


def use(names: Names) -> None:
    """Call the methods of a dataset that a text defines, on a dataset that has what they read."""
    rows = Rows()
    methods = {name: names[name] for name in ("__getitem__", "__iter__") if name in names}
    if methods:
        base = Dataset if "__getitem__" in methods else Stream
        made = type("Pasted", (base,), {**methods, "prepared": list(rows)})()
    elif isinstance(made := names.get("Prepared"), type):
        made = made([row.tolist() for row in rows])
    else:
        return
    given = [made[i] for i in range(len(rows))] if not isinstance(made, IterableDataset) else list(made)
    assert_same(plain([*rows]), plain([torch.as_tensor(each) for each in given]), torch.equal, "samples")
    assert not hasattr(made, "raw") or len(made) == len(rows)


def stored(text: str) -> set[str]:
    """Return the names that a text gives a value."""
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def trained(names: Names) -> dict[str, torch.Tensor]:
    """Return the model's parameters after two more steps of the script's training on one batch."""
    torch.manual_seed(2)
    model, optimizer = names["model"], names["optimizer"]
    mine = {id(p) for p in model.parameters()}
    if not mine >= {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (each.to(next(model.parameters()).dtype) for each in names[GIVEN])
    for _ in range(2):
        optimizer.zero_grad()
        names["criterion"](model(x), y).backward()
        optimizer.step()
    return states(model)


def states(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the parameters and buffers, under the names that they have in the model that a wrapper holds."""
    found = model.state_dict()
    return {name.replace("module.", "").replace("_orig_mod.", ""): whole(each) for name, each in found.items()}


def whole(each: torch.Tensor) -> torch.Tensor:
    """Return a copy of a parameter, of one that is shared out among ranks all of it."""
    return (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()


def plain(value: Any) -> Any:
    """Return what is compared of a value: tensors, numbers and text, what a loader gives, and what a module holds."""
    if isinstance(value, nn.Module):
        return states(value)
    if isinstance(value, DataLoader):
        torch.manual_seed(3)
        return [plain(batch) for batch in value]
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in (sorted(value) if isinstance(value, set) else value)]
    return value if isinstance(value, torch.Tensor | int | float | str) else None


def assert_same(before: Any, after: Any, same: Callable[[torch.Tensor, torch.Tensor], bool], name: str) -> None:
    """Assert that two plain values are the same, tensors by ``same``."""
    if isinstance(before, Mapping):
        assert before.keys() == after.keys(), name
        for key, each in before.items():
            assert_same(each, after[key], same, f"{name}.{key}")
    elif isinstance(before, list):
        assert len(before) == len(after), name
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            assert_same(one, other, same, f"{name}[{at}]")
    elif isinstance(before, torch.Tensor):
        assert same(before, after), f"{name}: {before} and {after}"
    elif isinstance(before, float):
        assert same(torch.tensor(before), torch.tensor(after)), f"{name}: {before} and {after}"
    else:
        assert before == after, f"{name}: {before} and {after}"
