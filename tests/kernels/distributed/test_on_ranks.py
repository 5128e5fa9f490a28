import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
RANKS = {"checks_of_four": 4}
CHECKS = [
    (path.stem, node.name, RANKS.get(path.stem, 2))
    for path in sorted(FOLDER.glob("checks_*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.mark.parametrize(("file", "name", "num_ranks"), CHECKS, ids=[f"{f}-{n}" for f, n, _ in CHECKS])
def test_check(assert_check, file, name, num_ranks):
    assert_check(file, name, num_ranks)
