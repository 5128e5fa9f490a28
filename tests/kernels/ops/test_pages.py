"""Each operator's docstring is its page, its example runs, and importing it needs neither triton nor a compiler."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[3] / "kernels" / "ops"
PAGES = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith("_"))
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


def test_pages_have_their_sections_in_order():
    assert {path.stem: wrong for path in PAGES if (wrong := faults(path))} == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_example_runs(path):
    example = "\n".join(line[4:] for line in page(path).split("Example::")[1].strip("\n").splitlines())
    assert f"from diagnose.kernels.ops.{path.stem} import" in example
    torch.manual_seed(0)
    exec(compile(example, str(path), "exec"), {"torch": torch, "nn": torch.nn})


def test_importing_needs_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, diagnose.kernels.ops as ops\n"
        "print(ops.gelu(torch.zeros(2)).tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[0.0, 0.0]"
