"""Reports format the answer: they compare no findings, pick no change, put nothing in order and compute no range."""

import ast
from pathlib import Path

import pytest

REPORTS = Path(__file__).parents[2] / "reports"
# What the answer is decided by; a report may print it, but not weigh it.
WEIGHED = {
    "worth_ns",
    "relief_ns",
    "gain_ns",
    "saves_ns",
    "range_ns",
    "low_ns",
    "high_ns",
    "predicted_step_ns",
    "confidence",
}
CHOICES = {"findings", "prescriptions", "cards", "trials", "forecasts"}
DECIDES = {"sorted", "max", "min", "sort"}
# Printed as it is, not weighed: a word for "high", two ends that read alike, a bar drawn to its scale.
PRINTED = {
    "text.py": {"confidence", "low_ns", "high_ns"},
    "json_reading.py": {"confidence"},
}
MODULES = sorted(REPORTS.glob("*.py"))


def attributes(node):
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def compared(tree):
    """Yield each comparison by size of what the answer is decided by."""
    by_size = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, by_size) for op in node.ops):
            yield from attributes(node) & WEIGHED


def chosen(tree):
    """Yield each list of the answer that a call puts in order or picks from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in DECIDES:
                yield from attributes(ast.Tuple([*node.args, *(k.value for k in node.keywords)])) & CHOICES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_report_decides_nothing(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not set(compared(tree)) - PRINTED.get(path.name, set())
    assert not set(chosen(tree))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_report_imports_no_rule_of_the_choice(path):
    names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("diagnose.answer", "diagnose.tables", "diagnose.model.limits"))
        for alias in node.names
    }
    assert not names & {
        "in_order",
        "answering",
        "worth_ns",
        "FLOOR",
        "THRESHOLDS",
        "MIN_GAIN_SHARE",
        "offered",
        "possible_step",
    }


def test_a_choice_would_be_found():
    tree = ast.parse("best = max(d.findings, key=lambda f: f.worth_ns)\nif p.saves_ns[1] > 1: pass")
    assert (set(chosen(tree)), set(compared(tree))) == ({"findings"}, {"saves_ns"})
