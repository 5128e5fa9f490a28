"""The pages of the remedies for several ranks have the form of all pages."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "kernels" / "distributed"
REMEDIES = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith("_"))
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
    assert {path.stem: wrong for path in REMEDIES if (wrong := faults(path))} == {}


def test_examples_use_the_remedy():
    for path in REMEDIES:
        assert f"from diagnose.kernels.distributed.{path.stem} import" in page(path).split("Example::")[1], path.stem


def foreign(path):
    """Return what a remedy imports of diagnose outside its own folder."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [n for n in names if n.startswith("diagnose") and not n.startswith("diagnose.kernels")]


def test_nothing_of_diagnose_but_kernels_is_imported():
    assert {path.stem: names for path in sorted(FOLDER.glob("*.py")) if (names := foreign(path))} == {}
