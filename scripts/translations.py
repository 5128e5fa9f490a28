"""Lists the texts of rules and changes that the Chinese catalogue lacks; reports show those in English.

Returns 1 where there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from diagnose.analyzers import ADVICE, RULES
from diagnose.changes import CHANGES
from diagnose.reports.language import language, translated

__all__ = ["COMPOSED", "texts", "untranslated"]

TEXTS = ("title", "doubt", "cause")  # arguments, and the ends of variables
ROOT = Path(__file__).resolve().parents[1]
COMPOSED = frozenset(
    {
        "; 7",
        "7 7 late7: 7; 7",
        "7 7 takes longer the more it holds",
        "7 is much longer7",
        "Ranks 7 take turns in coming late7",
        "7; otherwise ranks 7 take turns",
        "7: rank 7 begins its step 7 late",
        "Code is compiled or loaded 7",
        "The allocator requests memory from the driver 7",
        "Make the sample cheaper at 7",
        "Prepare all samples once, before training: 7",
        "7 (7)",
    }
)
"""Titles that hold texts where the sample has a 7: those are translated by themselves, or the title with them."""


def texts() -> dict[str, str]:
    """Return the texts of rules and changes, and of each what it is of."""
    found: dict[str, str] = {}
    for rule in RULES:
        legend = rule.META.legend
        found |= dict.fromkeys(
            filter(None, (legend.label, legend.host_label, legend.heading, legend.meaning)),
            f"legend of rule {rule.META.id}",
        )
    for change in CHANGES.values():
        found.setdefault(change.numerics.safety, f"what change {change.id} does to the numbers")
    for advice in (entry for listed in ADVICE.values() for entries in listed.values() for entry in entries):
        found.setdefault(advice.numerics.safety, f"what advice {advice.id} does to the numbers")
    for folder in ("analyzers", "analyzers/common", "diagnose/changes"):
        for path in sorted((ROOT / folder).glob("*.py")):
            found |= dict.fromkeys(_titles(path), f"title in {folder}/{path.name}")
    for path in sorted((ROOT / "analyzers" / "common" / "idioms").glob("*.py")):  # of a title and its line
        of = f"title in analyzers/common/idioms/{path.name}"
        found |= {f"{title} (7)": of for title in _titles(path, ("title",))}
        found |= dict.fromkeys(_titles(path, ("cause",)), of)
    return {text: of for text, of in found.items() if text not in COMPOSED}


def _titles(path: Path, named: tuple[str, ...] = TEXTS) -> Iterator[str]:
    """Yield the texts that a file gives to arguments and variables of these names, and the titles of kinds of rules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        given: list[ast.expr] = []
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg in named]
            if getattr(node.func, "id", "") in ("KernelRule", "IdleRule"):
                given += node.args[1:2]
        elif isinstance(node, ast.Assign):
            names, values = _listed(node.targets[0]), _listed(node.value)
            given = [
                value
                for name, value in zip(names, values, strict=False)
                if getattr(name, "id", "").lower().endswith(named)
            ]
        parts = (part for one in given for part in ([one.body, one.orelse] if isinstance(one, ast.IfExp) else [one]))
        yield from (text for text in map(_sample, parts) if text is not None and " " in text)  # no kind of a cause


def _listed(node: ast.expr) -> list[ast.expr]:
    """Return what a tuple holds, or the one that is no tuple."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _sample(node: ast.expr) -> str | None:
    """Return a text as a constant, a template or an f-string makes it, with 7 for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        with_places = node.value.replace("{at}", " at 7").replace("{there}", " (7)")
        return re.sub(r"\{[^{}]*\}", "7", with_places)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
    return None


def untranslated() -> dict[str, str]:
    """Return those of the texts that are shown in English in a Chinese report."""
    with language("zh"):
        return {text: of for text, of in texts().items() if not re.search("[\u4e00-\u9fff]", translated(text))}


def main() -> int:
    """Print a line for each text that lacks a translation."""
    lacking = untranslated()
    for text, of in lacking.items():
        print(f"{of}: {text}")
    print(f"{len(lacking)} of {len(texts())} texts of rules and changes are not translated", file=sys.stderr)
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
