"""Writes changes into the user's script, by its syntax tree: a unified diff that git applies.

Only changes whose place is known are made: arguments of calls, a setting after the imports, the forward before a
``loss.backward()``, and lines that a finding names.
What is written as it is today stays so, comments and blanks included. The file itself is not touched.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.changes import CHANGES
from diagnose.changes.common.call_arguments import passed, set_arguments
from diagnose.changes.common.change import AddStatement, EditLoop, SetArguments
from diagnose.errors import UsageError
from diagnose.model.files import write_file

if TYPE_CHECKING:
    import libcst

__all__ = ["Written", "edited_source", "file_diff", "write_patch"]


@dataclass(frozen=True)
class Written:
    """What became of the prescriptions."""

    diff: str  # "" where nothing was changed
    done: tuple[str, ...]  # ids
    left: Mapping[str, str]  # id: why it has to be written by hand


def write_patch(
    script: Path,
    wanted: Sequence[str],
    arguments: Mapping[str, Mapping[str, object]],
    patch: Path,
    *,
    force: bool = False,
) -> Written:
    """Write the diff of the script with these changes to ``patch``, if there are any.

    Raises:
        UsageError: libcst is not installed, or the script is no Python that it can parse.
        OutputError: ``patch`` exists already and ``force`` is off, or it cannot be written.
    """
    try:
        before = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{script} cannot be read as Python source ({error}); no patch can be made of it.") from error
    after, done, left = edited_source(before, str(script), wanted, arguments)
    diff = file_diff(before, after, _from_here(script))
    if diff:
        write_file(patch, diff, force=force)
    return Written(diff, done, left)


def file_diff(before: str, after: str, name: str) -> str:
    """Return the unified diff of a file, as git applies it; ``name`` is its path from where that is done."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def edited_source(
    source: str, script: str, wanted: Sequence[str], arguments: Mapping[str, Mapping[str, object]]
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return the source with these changes, the ids of those that were made, and by id why one was not.

    Raises:
        UsageError: libcst is not installed, or the source is no Python that it can parse.
    """
    try:
        import libcst
    except ImportError as error:
        raise UsageError(
            "Changes in a script's text need the package libcst: pip install 'diagnose[patch]'."
        ) from error
    try:
        tree = libcst.parse_module(source)
    except libcst.ParserSyntaxError as error:
        raise UsageError(f"{script} is no Python that can be parsed: {error.message}") from error
    done, left = [], {}
    for name in wanted:
        edit = CHANGES[name].edit
        if edit is None:
            left[name] = "its page shows the code"
            continue
        if isinstance(edit, AddStatement):
            changed, why = _with_statement(tree, edit)
        elif isinstance(edit, EditLoop):
            changed, why = _with_loop(tree, edit, arguments.get(name, {}))
        else:
            changed, why = _with_arguments(tree, edit, arguments.get(name, {}))
        if why:
            left[name] = why
        else:
            done.append(name)
            tree = changed
    return tree.code, tuple(done), left


def _with_loop(tree: libcst.Module, edit: EditLoop, asked: Mapping[str, object]) -> tuple[libcst.Module, str]:
    from diagnose.trials import loop_edits

    for name, (value, reason) in edit.unless.items():
        if asked.get(name) == value:
            return tree, reason
    changed, why = getattr(loop_edits, edit.function)(tree, asked.get(edit.takes, edit.default))
    return (_after_imports(changed, edit.imports) if edit.imports and not why else changed), why


def _with_statement(tree: libcst.Module, edit: AddStatement) -> tuple[libcst.Module, str]:
    import libcst

    from diagnose.trials.loop_edits import imports_torch

    if edit.code in tree.code:
        return tree, "the script has it already"
    own = next((name for name in edit.set_by if name in tree.code), "")
    if own:
        return tree, f"the script sets {own} itself, at a place that its author knows"
    if not imports_torch(tree):
        return tree, "the script does not import torch by that name"
    if edit.imports:
        tree = _after_imports(tree, edit.imports)
    return _after_imports(tree, edit.code, leading_lines=[libcst.EmptyLine(indent=False)]), ""


def _after_imports(tree: libcst.Module, code: str, **changes: object) -> libcst.Module:
    """Put a statement after the last import at the top, or where there is none after the docstring."""
    import libcst

    places = [i for i, line in enumerate(tree.body) if _imports(line)]
    first = 1 if tree.get_docstring() is not None else 0
    body = list(tree.body)
    body.insert(places[-1] + 1 if places else first, libcst.parse_statement(code).with_changes(**changes))
    return tree.with_changes(body=body)


def _imports(line: Any) -> bool:  # a node of a statement list
    import libcst

    return isinstance(line, libcst.SimpleStatementLine) and any(
        isinstance(part, libcst.Import | libcst.ImportFrom) for part in line.body
    )


def _with_arguments(tree: libcst.Module, edit: SetArguments, asked: Mapping[str, object]) -> tuple[libcst.Module, str]:
    import libcst

    class Editor(libcst.CSTTransformer):
        count = 0
        why = ""

        def leave_Call(self, _original: libcst.Call, updated_node: libcst.Call) -> libcst.BaseExpression:
            if _called(updated_node) not in edit.of:
                return updated_node
            before = tree.code_for_node(updated_node)
            values, why = edit.of_call(passed(before, edit.parameters), asked)
            text, how = set_arguments(before, values, parameters=edit.parameters, spread=None)
            if why or how:
                self.why = why or how
                return updated_node
            self.count += 1
            return libcst.parse_expression(text, tree.config_for_parsing)

    editor = Editor()
    changed = tree.visit(editor)
    if editor.count:
        return changed, ""
    if editor.why:
        return tree, f"its call of {edit.of[0]}: {editor.why}"
    return tree, f"the script calls no {' or '.join(edit.of[:3])} itself"


def _called(call: libcst.Call) -> str:
    import libcst

    if isinstance(call.func, libcst.Attribute):
        return call.func.attr.value
    return call.func.value if isinstance(call.func, libcst.Name) else ""


def _from_here(script: Path) -> str:
    """Return the script's path from the working folder, where git applies the patch."""
    try:
        return script.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return script.name
