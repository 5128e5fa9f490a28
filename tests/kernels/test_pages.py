"""Each docstring of a remedy is its page, and the examples of operators run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diagnose.kernels import _OLD_NAMES as OLD_NAMES

FOLDER = Path(__file__).parents[2] / "kernels"
PACKAGES = (FOLDER, FOLDER / "distributed", FOLDER / "ops")
FILES = [p for folder in PACKAGES for p in folder.glob("*.py") if not p.name.startswith("_")]
REMEDIES = sorted(p for p in FILES if p.stem not in OLD_NAMES)
OPERATORS = [p for p in REMEDIES if p.parent.name == "ops"]
SECTIONS = ("What it cures", "When it does not help", "Cost", "Numerics", "Example::")


def page(path):
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def faults(path):
    """Return what is wrong with the form of a page."""
    text = page(path)
    places = [re.search(rf"^{re.escape(section)}$", text, re.MULTILINE) for section in SECTIONS]
    if missing := [s for s, p in zip(SECTIONS, places, strict=True) if not p]:
        return [f"lacks {missing}"]
    starts = [p.start() for p in places]
    wrong = [] if starts == sorted(starts) else ["its sections are in another order"]
    if not re.search(r"`[a-z]+(-[a-z]+)+`", text[places[0].end() : places[1].start()]):
        wrong.append("no rule is named")
    return wrong


def module(path):
    return ".".join(("diagnose", *path.relative_to(FOLDER.parent).with_suffix("").parts))


def example(path):
    return "\n".join(line[4:] for line in page(path).split("Example::")[1].strip("\n").splitlines())


def test_pages_have_their_sections_in_order():
    assert {module(path): wrong for path in REMEDIES if (wrong := faults(path))} == {}


def test_examples_are_python_and_use_the_remedy():
    for path in REMEDIES:
        imported = [n.module for n in ast.walk(ast.parse(example(path))) if isinstance(n, ast.ImportFrom)]
        assert module(path) in imported


@pytest.mark.parametrize("path", OPERATORS, ids=lambda p: p.stem)
def test_an_operator_s_example_runs(path):
    torch.manual_seed(0)
    exec(compile(example(path), str(path), "exec"), {"torch": torch, "nn": torch.nn})


@pytest.mark.full
def test_importing_operators_needs_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, diagnose.kernels.ops as ops\n"
        "print(ops.gelu(torch.zeros(2)).tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[0.0, 0.0]"
