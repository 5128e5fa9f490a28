"""Examples of remedies in the documentation run as they stand, and the table of techniques names what is there."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from diagnose.kernels.distributed.comm_hooks import hook_names

sys.path.append(str(Path(__file__).parents[2] / "evaluation"))
from remedy_figures import FIGURES
from remedy_inventory import public_modules

ROOT = Path(__file__).parents[2]

EXAMPLES = [
    pytest.param(example, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
    if "diagnose.kernels" in example
]
REMEDIES = (ROOT / "docs" / "remedies.md").read_text(encoding="utf-8")
PAGE = (ROOT / "evaluation" / "pages" / "remedies.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| technique | module | cures | tests | figures |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("| ").split("|")] for line in TABLE.splitlines()[2:]]
BY_TECHNIQUE = [pytest.param(row, id=row[0]) for row in ROWS]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    names = {
        "model": model,
        "dataset": TensorDataset(torch.randn(32, 8), torch.arange(32) % 4),
        "loader": DataLoader(TensorDataset(torch.randn(32, 8), torch.arange(32) % 4), batch_size=8),
        "criterion": nn.CrossEntropyLoss(),
        "epochs": 1,
    }
    exec(compile(example.replace('"cuda"', '"cpu"'), "docs", "exec"), names)


def test_examples_are_found():
    assert len(EXAMPLES) >= 3


def test_every_technique_has_a_row():
    assert len({row[0] for row in ROWS}) == len(ROWS) == 69


@pytest.mark.parametrize("row", BY_TECHNIQUE)
def test_a_row_names_what_is_there(row):
    _, module, cures, tests, figures = row
    has_module = not module.startswith("none: ")
    named = [name for name in re.findall(r"`([a-z_./]+)`", module) if not (has_module and name in PACKAGES)]
    assert [name for name in named if not _is_module(name)] == []
    assert bool(named) >= has_module, "a module, or the reason why there is none"
    assert [rule for rule in re.findall(r"`([a-z-]+)`", cures) if not _is_rule(rule)] == []
    files = re.findall(r"`([a-z_./0-9]+)`", tests)
    assert [file for file in files if not (ROOT / "tests" / "kernels" / f"{file}.py").resolve().exists()] == []
    assert bool(files) >= has_module, "a module is tested"
    assert figures


def modules(page):
    """Return the lines of a page's modules by their names, from a list or a table."""
    listed = page.partition("<!-- modules: made by scripts/rules -->")[2].partition("<!-- end of modules -->")[0]
    return {found[1]: found[2] for found in re.finditer(r"^[-|] `([\w.]+)`[: |]+(.*)$", listed, re.MULTILINE)}


def test_every_module_has_a_line_of_what_it_does():
    rows, listed = modules(REMEDIES), [m for m in public_modules() if not m.name.startswith("ops.")]
    assert sorted(rows) == [m.name for m in listed]
    for m in listed:
        assert rows[m.name].endswith(".")


def test_every_module_has_a_row_made_from_what_hands_it_over():
    rows = modules(PAGE)
    assert sorted(rows) == [m.name for m in public_modules()]
    for m in public_modules():
        prescribed, trial, cpu, script, gpu = rows[m.name].strip("| ").split(" | ")
        assert [f"[{name}]" in prescribed for name in m.changes] == [True] * len(m.changes)
        assert all(method in trial for method in m.methods)
        assert (script == "–") == cpu.startswith("none: ")
        assert (cpu, gpu) == (FIGURES[m.name].cpu, FIGURES[m.name].gpu)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_figure_of_a_module_is_that_of_a_script_which_runs_it(name):
    script = FIGURES[name].script
    if script:
        files = [ROOT / "evaluation" / "benchmarks" / f"{script}.py"]
        if script == "ops":
            files += sorted((ROOT / "evaluation" / "benchmarks").glob("op_*.py"))
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        exported = getattr(import_module(f"diagnose.kernels.{name}"), "__all__", [])
        words = (*exported, *(hook_names() if name == "distributed.comm_hooks" else ()))  # they run by their names
        assert name in text or any(re.search(rf"\b{re.escape(word)}\b", text) for word in words), script


PACKAGES = ("webdataset", "load_on_demand")


def _is_module(name):
    path = ROOT / "kernels" / name
    return path.is_file() or path.parent.joinpath(f"{name.replace('.', '/')}.py").is_file()


def _is_rule(rule):
    return (ROOT / "analyzers" / f"{rule.replace('-', '_')}.py").is_file()
