"""The examples of the operators in docs/remedies.md run, and their table names every operator."""

import re
from pathlib import Path

import pytest

from diagnose.kernels import ops

PAGE = (Path(__file__).parents[3] / "docs" / "remedies.md").read_text(encoding="utf-8").split("## Operators")[1]


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_example_runs(example):
    exec(example, {})


def test_every_operator_is_named():
    table = PAGE.split("```")[0]
    assert [name for name in ops.__all__ if name != "using" and f"`{name}" not in table] == []
