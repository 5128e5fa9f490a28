"""Every change gives advice among the cases, and every text that its file can print is among theirs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose import analyzers, changes
from diagnose.changes import CHANGES
from tests.changes.advice_cases import RULES, distinct, printed
from tests.changes.pasted import is_prose, is_python

FOLDER = Path(changes.__file__).parent
FILES = sorted([*FOLDER.glob("*.py"), *(FOLDER / "common").glob("*.py")])
END = 20  # characters of a text
MAX_PROSE = 5  # texts without a statement, which may only become fewer
Lines = set[tuple[str, int]]


@pytest.fixture(scope="module")
def ran() -> Lines:
    """Return the lines of the changes' files that run while all cases are printed."""
    found: Lines = set()

    def trace(frame, _event, _argument):
        name = frame.f_code.co_filename
        if not name.startswith(str(FOLDER)):
            return None
        found.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        list(printed())
    finally:
        sys.settrace(before)
    return found


def gives_advice(node: ast.AST) -> bool:
    """Return whether a function returns advice, as its annotation says."""
    return (
        isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns) in ("Proposal", "Proposal | None")
    )


def lines_of_advice(path: Path) -> Iterator[tuple[range, str]]:
    """Yield the lines of each statement in functions that give advice; of one that gives none, nothing."""
    for function in filter(gives_advice, ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        for node in ast.walk(function):
            if isinstance(node, ast.FunctionDef) or not isinstance(node, ast.stmt) or is_left_out(node):
                continue
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            yield range(node.lineno, max(last, node.lineno) + 1), ast.unparse(node).splitlines()[0]


def is_left_out(node: ast.stmt) -> bool:
    """Return whether a statement prints nothing: a docstring, an import, or the end without advice."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Import | ast.ImportFrom) or ast.unparse(node) == "return None"


def texts(path: Path) -> Iterator[str]:
    """Yield the parts of the code that a file's constants hold: patterns, and what its CHANGE holds, left out."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or ast.unparse(statement).startswith("CHANGE"):
            continue
        patterns = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and "pattern" in ast.unparse(n.func)]
        left = {id(inner) for call in patterns for inner in ast.walk(call)}
        for node in ast.walk(statement):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left
            if is_text and re.search(r"[=(#]", node.value) and " " in node.value.strip():
                yield from filter(None, (part.strip() for part in re.split(r"\{\w*\}", node.value)))


def test_every_change_that_a_rule_names_is_printed():
    named = {name for rule in analyzers.RULES for name in (*rule.META.changes, *rule.META.also)}
    assert {each.prescription.id for each in distinct()} == named
    advised = {name for listed in analyzers.ADVICE.values() for name in listed}
    assert named == advised | {name for name in CHANGES if CHANGES[name].proposal is not None}


def test_every_form_of_an_advice_is_printed():
    shown = {(p.id, p.after[-END:]) for p in (each.prescription for each in distinct())}
    advised = (e for listed in analyzers.ADVICE.values() for entries in listed.values() for e in entries)
    assert {(e.id, e.after[-END:]) for e in advised if "{" not in e.after} - shown == set()


def test_every_rule_with_changes_was_asked():
    asked = {each.prescription.rule for each in printed()}
    assert asked == {name for name, rule in RULES.items() if rule.META.changes or rule.META.also}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_branch_that_gives_advice_is_printed(path, ran):
    missed = [
        f"{path.name}:{lines.start}: {text}" for lines, text in lines_of_advice(path) if not hit(path, lines, ran)
    ]
    assert missed == []


def hit(path: Path, lines: range, ran: Lines) -> bool:
    return any((str(path), line) in ran for line in lines)


def test_every_text_of_a_change_is_printed():
    shown = "\n".join(
        "\n".join((p.before, p.after, p.title, p.needs, p.safety)) for p in (each.prescription for each in printed())
    )
    files = [path for path in FILES if path.parent == FOLDER]
    assert [f"{path.name}: {text}" for path in files for text in texts(path) if text not in shown] == []


def test_few_texts_are_prose():
    sides = {(p.id, text) for p in (each.prescription for each in distinct()) for text in (p.before, p.after)}
    prose = [f"{name}: {text}" for name, text in sides if text and is_python(text) and is_prose(text)]
    assert len(prose) <= MAX_PROSE, "\n\n".join(prose)
