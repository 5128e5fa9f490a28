"""Without any one of the lines that order streams, an access is found that comes too early.

The lines are searched for in the sources, and each is left out of the module that the scenarios then use.
"""

import ast
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import CodeType

import pytest

import diagnose.kernels
from tests.kernels.ordering.fake_device import Unordered
from tests.kernels.ordering.scenarios import CASES

FOLDER = Path(diagnose.kernels.__file__).parent
BETWEEN_STREAMS = {"wait_stream", "wait_event", "record_stream", "cudagraph_mark_step_begin"}
OF_EVENTS = {"record", "synchronize", "wait"}  # elsewhere they also measure times


def calls(tree, names):
    """Return the calls of a method of one of the names."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call for call in found if call.func.attr in names]


def statements(tree, names):
    """Yield the calls that are statements, each with the path of the function that has it."""
    for holder in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for function in (node for node in holder.body if isinstance(node, ast.FunctionDef)):
            path = function.name if holder is tree else f"{holder.name}.{function.name}"
            whole = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
            yield from ((path, call) for call in calls(function, names) if id(call) in whole)


def modules():
    """Yield each module of kernels, its tree, and the names of what orders streams there."""
    covered = {module for module, _, _ in CASES}
    for path in sorted(FOLDER.rglob("*.py")):
        module = ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        yield module, ast.parse(path.read_text()), BETWEEN_STREAMS | (OF_EVENTS if module in covered else set())


LINES = [
    pytest.param(module, function, call.lineno, id=f"{module}-{function}-{ast.unparse(call)}")
    for module, tree, names in modules()
    for function, call in statements(tree, names)
]


class Without(ast.NodeTransformer):
    """Leaves out the call of one line, and keeps what it is called on."""

    def __init__(self, line):
        self.line = line

    def visit_Expr(self, node):
        if node.lineno == self.line:
            node.value = node.value.func.value
        return node


def without(module, line, original):
    """Return the code of a function of a module without the call in a line."""
    tree = Without(line).visit(ast.parse(Path(module.__file__).read_text()))
    codes = [compile(tree, module.__file__, "exec", dont_inherit=True)]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    (code,) = (code for code in codes if (code.co_firstlineno, code.co_name) == place(original.__code__))
    return code


def run_all(cases, monkeypatch):
    for run in cases:
        run(monkeypatch)


def place(code):
    return code.co_firstlineno, code.co_name


@pytest.mark.parametrize(("name", "function", "line"), LINES)
def test_a_line_that_orders_streams_is_missed(monkeypatch, name, function, line):
    module = import_module(f"diagnose.kernels.{name}")
    original = attrgetter(function)(module)
    monkeypatch.setattr(original, "__code__", without(module, line, original))
    cases = [run for covered, _, run in CASES if covered == name]
    assert cases, f"no scenario of scenarios.py uses kernels/{name}.py, which orders streams in line {line}"
    with pytest.raises(Unordered):
        run_all(cases, monkeypatch)


def test_no_line_escapes_the_search():
    for module, tree, _ in modules():
        as_statements = list(statements(tree, BETWEEN_STREAMS))
        assert len(as_statements) == len(calls(tree, BETWEEN_STREAMS)), f"one in kernels/{module}.py is part of another"
    assert {line.values[0] for line in LINES} == {module for module, _, _ in CASES}
