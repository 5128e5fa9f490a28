"""Examples of remedies in the documentation run as they stand, and the table of techniques names what is there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    pytest.param(example, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
    if "diagnose.kernels" in example
]
PAGE = (ROOT / "docs" / "remedies.md").read_text(encoding="utf-8")
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
    assert len({row[0] for row in ROWS}) == len(ROWS) == 68


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


PACKAGES = ("webdataset", "load_on_demand")


def _is_module(name):
    path = ROOT / "kernels" / name
    return path.is_file() or path.parent.joinpath(f"{name.replace('.', '/')}.py").is_file()


def _is_rule(rule):
    return (ROOT / "analyzers" / f"{rule.replace('-', '_')}.py").is_file()
