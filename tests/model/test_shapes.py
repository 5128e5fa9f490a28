"""The number of elements has a largest value, and every product of a shape goes through it."""

from pathlib import Path

import pytest

from diagnose.model.shapes import MAX_ELEMENTS, num_elements

PACKAGES = [Path(__file__).parents[2] / name for name in ("diagnose", "analyzers", "reports")]
# A kernel's grid is no shape of a tensor, and has a bound of its own.
OTHERS = {"diagnose/model/shapes.py", "diagnose/trace_reader/fields.py"}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), 1), ((2, 3), 6), ((0, 5), 0), ((-1, 4), 0), ((2**62, 2**62), MAX_ELEMENTS), ((10**30, 0), 0)],
)
def test_elements_of_a_shape(shape, expected):
    assert num_elements(shape) == expected


def test_no_other_product_of_a_shape():
    root = PACKAGES[0].parent
    files = {str(file.relative_to(root)): file for folder in PACKAGES for file in folder.rglob("*.py")}
    assert files.keys() >= OTHERS
    assert [name for name, file in files.items() if "prod" in _imported(file) and name not in OTHERS] == []


def _imported(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("from math import ")]
    return {name for line in lines for name in line.partition(" import ")[2].split(", ")} | (
        {"prod"} if any(call in text for call in ("math.prod(", "np.prod(")) else set()
    )
