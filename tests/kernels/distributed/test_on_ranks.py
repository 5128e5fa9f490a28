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
LONG = ("check_compression_on_four_ranks", "check_loss_after_sixty_steps_is_near_plain_ddp")


@pytest.mark.parametrize(
    ("file", "name", "num_ranks"),
    [
        pytest.param(file, name, num, id=f"{file}-{name}", marks=[pytest.mark.full] if name in LONG else [])
        for file, name, num in CHECKS
    ],
)
def test_check(assert_check, file, name, num_ranks):
    assert_check(file, name, num_ranks)
