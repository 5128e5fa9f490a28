"""``diagnose lint``: slow forms of Python that a source shows by itself, without a recording.

They are those of the catalogue of idioms (``diagnose.analyzers.common.idioms``), on lines that a training loop, a
sample or a module's ``forward`` runs again and again. What a line costs only a recording shows.
"""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from diagnose.analyzers.common.idioms import idiom_of
from diagnose.analyzers.common.idioms.source import Idiom, Source
from diagnose.capture.record.source_lines import source_tree
from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.errors import InputError
from diagnose.model.files import printable
from diagnose.text.numbers import plural

__all__ = ["Remark", "lint_and_answer", "remarks"]

_FOR_EACH = frozenset({"__getitem__", "__getitems__", "__iter__", "__call__", "__next__", "forward", "collate_fn"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Loop = ast.For | ast.AsyncFor | ast.While


class Remark(NamedTuple):
    """A line that has a faster form."""

    file: str
    line: int
    code: str
    idiom: Idiom


def lint_and_answer(files: Sequence[str], request: ResultRequest) -> int:
    """Print the lines of Python files that have faster forms; return 0 whether there are any or not.

    Raises:
        InputError: a file cannot be read, or is not Python.
        OutputError: the result cannot be written.
    """
    written = plan_text(request, files)
    found = [one for file in files for one in remarks(file, *_read(file))]
    answer_text(lambda: "\n".join(_lines(found)), lambda: json.dumps(_data(found), indent=2), request, written)
    return 0


def remarks(file: str, text: str, tree: ast.Module) -> Iterator[Remark]:
    """Yield the lines of a source that run again and again and have a faster form, in their order."""
    lines = text.split("\n")
    shown, again = source_tree(lines), _run_again(tree)
    for first, last in sorted(shown.texts):
        whole = textwrap.dedent("\n".join(lines[first - 1 : last]))
        around = ast.parse(whole).body[0]
        for statement in _statements(around):
            if statement.lineno + first - 1 in again:
                source = Source(statement, around, True, whole, first, shown.bindings)
                if (idiom := idiom_of(source)) is not None:
                    yield Remark(file, source.line(statement), source.now({}).strip(), idiom)


def _statements(around: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements in a function or loop, those of functions inside it left out."""
    for node in ast.iter_child_nodes(around):
        if isinstance(node, ast.stmt) and not isinstance(node, _Function | ast.ClassDef):
            yield node
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            yield from _statements(node)


def _run_again(tree: ast.Module) -> set[int]:
    """Return the lines of training loops, of what runs for each sample or batch, and of functions that they call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    left: list[ast.AST] = [node for node in functions if node.name in _FOR_EACH]
    left += [node for node in ast.walk(tree) if isinstance(node, _Loop) and _trains(node)]
    found, seen = set[int](), set[str]()
    while left:
        for node in ast.walk(left.pop()):
            if isinstance(node, ast.stmt):
                found.add(node.lineno)
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) not in seen:
                seen.add(name)
                left += [each for each in functions if each.name == name]
    return found


def _trains(loop: _Loop) -> bool:
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr in ("backward", "step") for each in calls)


def _read(file: str) -> tuple[str, ast.Module]:
    try:
        text = decode_source(Path(file).read_bytes())
        return text, ast.parse(text)
    except OSError as error:
        raise InputError(f"Cannot read {printable(file)}: {error.strerror or error}.") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError(f"{printable(file)} is not Python that this interpreter can read: {error}.") from error


def _lines(found: Sequence[Remark]) -> Iterator[str]:
    for one in found:
        yield f"{one.file}:{one.line}: {one.idiom.title}"
        yield f"    {one.code.splitlines()[0]}"
        yield from (f"    -> {line}" for edit in one.idiom.edits for line in edit.after.strip().splitlines())
        if one.idiom.condition:
            yield f"    the same numbers {one.idiom.condition}"
    number = f"{plural(len(found), 'line')} with a faster form" if found else "No line with a known faster form"
    yield f"{number}. Not measured: diagnose trace shows what a line costs."


def _data(found: Sequence[Remark]) -> dict[str, object]:
    return {
        "schema_version": 1,
        "remarks": [
            {
                "file": one.file,
                "line": one.line,
                "code": one.code,
                "title": one.idiom.title,
                "numerics": one.idiom.promise,
                "condition": one.idiom.condition,
                "edits": [edit._asdict() for edit in one.idiom.edits],
                "measured": False,
            }
            for one in found
        ],
    }
