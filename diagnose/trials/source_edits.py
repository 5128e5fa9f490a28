"""Writes changes into the user's script, by its syntax tree: a unified diff that git applies, or one that is printed.

Only changes whose place is known are made: arguments of calls, a setting after the imports, the forward before a
``loss.backward()``, and lines that a finding names. What is written as it is today stays so, comments and blanks
included. The file itself is not touched.

A capture holds the calls that make loaders and optimizers, and their printed diffs need no file. The other edits need
the source. Of those the script that the command was given is read, and files below the working folder that a finding
of this very run names; nothing else is.

It stays light, without libcst, until a script is edited.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.changes import CHANGES, edits_script, patch_of
from diagnose.changes.common.change import AddStatement, CannotApply, EditLoop
from diagnose.changes.common.prescribe import also_possible
from diagnose.changes.common.separate_diffs import applies_in, files_of, patched, separated
from diagnose.errors import UsageError
from diagnose.model.files import write_file
from diagnose.model.locations import Where
from diagnose.text.masking import mask_code
from diagnose.trials.candidates import OWN_EDIT, lines_of

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = ["Edits", "Written", "diffs_of", "edited_files", "edited_source", "file_diff", "with_diffs", "write_patch"]


@dataclass(frozen=True)
class Edits:
    """How changes are made in the text of the script and its modules."""

    script: Path
    cwd: Path = field(default_factory=Path.cwd)  # of its run, from which diffs name files
    diffs: Mapping[str, str] = field(default_factory=dict)  # as printed, by the id of the change
    own: Path | None = None  # the script as its author has edited it
    arguments: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # of the other changes, by id

    def turn_of(self, name: str) -> int:
        """Return when a change is made: the script's other text first, then what goes by lines, then diffs."""
        return 0 if name == OWN_EDIT else 2 if name in self.diffs else 1


@dataclass(frozen=True)
class Written:
    """What became of the prescriptions."""

    diff: str  # "" where nothing was changed
    done: tuple[str, ...]  # ids
    left: Mapping[str, str]  # id: why it has to be written by hand


def write_patch(edits: Edits, wanted: Sequence[str], patch: Path, *, force: bool = False) -> Written:
    """Write the diff of the script and its modules with these changes to ``patch``, if there are any.

    Raises:
        UsageError: libcst is not installed, or the script is no Python that it can parse.
        OutputError: ``patch`` exists already and ``force`` is off, or it cannot be written.
    """
    texts, done, left = dict[Path, str](), [], dict[str, str]()
    for name in sorted(wanted, key=edits.turn_of):
        try:
            _edit(texts, name, edits)
        except CannotApply as why:
            left[name] = str(why).removeprefix(f"{name} cannot be made: ").rstrip(".")
        else:
            done.append(name)
    diff = "".join(file_diff(_text(path), after, _name_of(path)) for path, after in texts.items())
    if diff:
        write_file(patch, diff, force=force)
    return Written(diff, tuple(done), left)


def _name_of(path: Path) -> str:
    """Return a file's name from the working folder, in which git applies the patch."""
    here, path = Path.cwd(), path.resolve()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def edited_files(edits: Edits, ids: Sequence[str]) -> tuple[dict[Path, str], tuple[str, ...]]:
    """Return the text of each file that these changes edit, and a line for each change that edits one.

    Raises:
        CannotApply: a change cannot be made; the sentence is the trial's result.
        UsageError: libcst is not installed, or the script is no Python.
    """
    texts: dict[Path, str] = {}
    wanted = [name for name in ids if name in edits.diffs or name == OWN_EDIT or edits_script(name)]
    return texts, tuple(_edit(texts, name, edits) for name in sorted(wanted, key=edits.turn_of))


def _edit(texts: dict[Path, str], name: str, edits: Edits) -> str:
    """Make one change in the texts of its files; return how."""
    script, cwd = edits.script, edits.cwd
    if not script.is_file():
        raise CannotApply(f"{name} is made in the text of a script, and this is a module.")
    if name == OWN_EDIT:
        if edits.own is None:
            raise CannotApply(f"{OWN_EDIT} needs --against FILE, the script with your edit.")
        texts[script] = _text(edits.own)
        return f"your edit, {edits.own.name}"
    diff = edits.diffs.get(name, "")
    for file in files_of(diff):
        after = patched(texts.get(cwd / file) or _text(cwd / file), file, diff)
        if after is None:
            raise CannotApply(f"{name} cannot be made: its diff does not fit {file}.")
        texts[cwd / file] = after
    if diff:
        return f"{name}, the printed diff of {', '.join(files_of(diff))}"
    texts[script], _, left = edited_source(texts.get(script) or _text(script), str(script), [name], edits.arguments)
    if left:
        raise CannotApply(f"{name} cannot be made: {left[name]}.")
    return f"{name}, in the text of {script.name}"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as Python source ({error}); no change can be made in it.") from error


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
            "Changes in a script's text need the package libcst: pip install 'torch-diagnose[patch]'."
        ) from error
    from diagnose.trials.script_edits import edited_tree

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
        changed, why = edited_tree(tree, edit, arguments.get(name, {}))
        if why:
            left[name] = why
        else:
            done.append(name)
            tree = changed
    return tree.code, tuple(done), left


def diffs_of(diagnosis: Diagnosis, cwd: Path) -> dict[str, str]:
    """Return the printed diffs by which a trial makes changes: those that no patch makes and that apply there."""
    found = (p for p in diagnosis.prescriptions if p.diff and patch_of(p.id) is None)
    return {p.id: p.diff for p in found if not p.arguments.get("by_hand") and applies_in(cwd, p.diff)}


def with_diffs(diagnosis: Diagnosis, script: Path) -> Diagnosis:
    """Return the diagnosis with a diff of the script for every prescription whose edit can be made in it.

    A prescription that has a diff keeps it, unless the files here contradict it; one whose edit does not fit keeps its
    example. So do all without libcst.
    """
    found = tuple(_with_diff(diagnosis, p, script) for p in diagnosis.prescriptions)
    found = tuple(p if applies_in(Path.cwd(), p.diff) is not False else replace(p, diff="", edits=()) for p in found)
    if all(new is old for new, old in zip(found, diagnosis.prescriptions, strict=True)):
        return diagnosis
    further = tuple(p for p in diagnosis.also_possible if p.id not in {new.id for new in found})
    return replace(diagnosis, prescriptions=separated(found), also_possible=further)


def _with_diff(diagnosis: Diagnosis, p: Prescription, script: Path) -> Prescription:
    edit = CHANGES[p.id].edit if p.id in CHANGES else None
    if p.diff or p.arguments.get("by_hand") or not isinstance(edit, AddStatement | EditLoop):
        return p
    other = p
    for file, name in _files(diagnosis, p, script):
        if isinstance(edit, AddStatement) and not file.samefile(script):
            continue  # a setting of the whole process
        made = _edited(diagnosis, p, file)
        if made is None:
            continue
        before, after, why = made
        if after != before:
            # The lines to edit: those that are replaced, else those after which something is added.
            old, new = before.splitlines(), after.splitlines()
            parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            replaced = [first for kind, first, *_ in parts if kind in ("replace", "delete")]
            before_added = [max(first - 1, 0) for kind, first, *_ in parts if kind == "insert"]
            lines = (line for line in replaced or before_added if line < len(old))
            edits = tuple(Where(name, line + 1, code=old[line].strip()) for line in lines)
            return replace(p, diff=file_diff(before, after, name), edits=edits)
        if isinstance(edit, EditLoop) and why and why == edit.gains_nothing:
            found = [f for f in diagnosis.findings if f.rule == p.rule]
            other = next((also for f in found for also in also_possible(f, diagnosis.step_ns)), p)
    return other


def _files(diagnosis: Diagnosis, p: Prescription, script: Path) -> Iterator[tuple[Path, str]]:
    """Yield the script and the finding's own files, each with its name from the working folder."""
    here = Path.cwd().resolve()
    named = [w.file for f in diagnosis.findings if f.rule == p.rule for w in f.where if w.file and not w.library]
    beside = [script.parent / name for name in named]  # a module that is imported from there is named from there
    for file in dict.fromkeys(path.resolve() for path in (script, *map(Path, named), *beside)):
        if file.is_relative_to(here) and file.is_file() and file.stat().st_size <= 2_000_000:  # written by hand
            yield file, file.relative_to(here).as_posix()


def _edited(diagnosis: Diagnosis, p: Prescription, file: Path) -> tuple[str, str, str] | None:
    """Return the source before and after the edit, and why it is the same; None if the edit shows a credential."""
    device = "cuda" if diagnosis.queue else "cpu"
    arguments = {**p.arguments, "device": device, "lines": lines_of(diagnosis, p.rule, file)}
    try:
        before = file.read_bytes().decode()
        after, _done, left = edited_source(before, file.name, [p.id], {p.id: arguments})
        ast.parse(after)
    except (OSError, ValueError, SyntaxError, UsageError):
        return None
    shown = file_diff(before, after, "")
    is_safe = "\r" not in before and all(mask_code(line) == line for line in shown.splitlines())
    return (before, after, left.get(p.id, "")) if is_safe else None
