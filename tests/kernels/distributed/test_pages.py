"""The pages of the remedies for several ranks have the form of all pages."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "kernels" / "distributed"
REMEDIES = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith("_"))
SECTIONS = ("What it cures", "When it does not help", "Cost", "Numerics", "Example::")


@pytest.mark.parametrize("path", REMEDIES, ids=lambda p: p.stem)
def test_page_has_its_sections_in_order(path):
    page = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    places = [re.search(rf"^{re.escape(section)}$", page, re.MULTILINE) for section in SECTIONS]
    assert all(places), [s for s, p in zip(SECTIONS, places, strict=True) if not p]
    assert [p.start() for p in places] == sorted(p.start() for p in places)
    assert re.search(r"`[a-z]+(-[a-z]+)+`", page[places[0].end() : places[1].start()]), "no rule is named"
    assert f"from diagnose.kernels.distributed.{path.stem} import" in page.split("Example::")[1]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_imports_nothing_of_diagnose_but_kernels(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [n for n in names if n.startswith("diagnose") and not n.startswith("diagnose.kernels")]
