"""Writes changes into the user's script, by its syntax tree: a unified diff that git applies, or one that is printed.

Only changes whose place is known are made: arguments of calls, a setting after the imports, the forward before a
``loss.backward()``, and lines that a finding names. What is written as it is today stays so, comments and blanks
included. The file itself is not touched.

A capture holds the calls that make loaders and optimizers, and their printed diffs need no file. The other edits need
the source. Of those the script of the recorded command is read, and files below the working folder that a finding
names; nothing else is. A file in which a recorded line reads otherwise by now is left alone.

It stays light, without libcst, until a script is edited.
"""

from __future__ import annotations

import ast
import difflib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.changes import CHANGES, edits_script, patch_of
from diagnose.changes.common.change import AddStatement, CannotApply, EditLoop
from diagnose.changes.common.prescribe import also_possible
from diagnose.changes.edits.merged_texts import merged
from diagnose.changes.edits.separate_diffs import applies_in, files_of, patched, separated
from diagnose.errors import DiagnoseError, UsageError
from diagnose.model.files import write_file
from diagnose.model.locations import Where
from diagnose.text.masking import mask_code

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis, Finding, Prescription

__all__ = [
    "OWN_EDIT",
    "Edits",
    "Written",
    "diffs_of",
    "edited_files",
    "edited_source",
    "file_diff",
    "lines_of",
    "module_file",
    "script_of",
    "with_diffs",
    "write_patch",
]


OWN_EDIT = "own-edit"  # in the place of a change's id: the script as its author has edited it


@dataclass(frozen=True)
class Edits:
    """How changes are made in the text of the script and its modules."""

    script: Path
    cwd: Path = field(default_factory=Path.cwd)  # of its run, from which diffs name files
    diffs: Mapping[str, str] = field(default_factory=dict)  # as printed, by the id of the change
    own: Path | None = None  # the script as its author has edited it
    arguments: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # of the other changes, by id


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
    making, left = _Texts(edits), dict[str, str]()
    for name in wanted:
        try:
            making.make(name)
        except CannotApply as why:
            left[name] = str(why).removeprefix(f"{name} cannot be made: ").rstrip(".")
    diff = "".join(file_diff(_text(path), after, _name_of(path)) for path, after in making.texts.items())
    if diff:
        write_file(patch, diff, force=force)
    return Written(diff, tuple(making.made), left)


def _name_of(path: Path) -> str:
    """Return a file's name from the working folder, in which git applies the patch."""
    here, path = Path.cwd(), path.resolve()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def edited_files(edits: Edits, ids: Sequence[str]) -> tuple[dict[Path, str], dict[str, str]]:
    """Return the text of each file that these changes edit, and how, by the id of each that edits one.

    What is printed is what runs: a change with a diff is made by it, another one by its edit of the script. A patch is
    left to those for which neither fits.

    Raises:
        CannotApply: a change cannot be made, and has no patch; the sentence is the trial's result.
        UsageError: libcst is not installed, or the script is no Python.
    """
    making = _Texts(edits)
    for name in ids:
        edit = CHANGES[name].edit if name in CHANGES else None
        if name not in (*edits.diffs, OWN_EDIT) and not (
            edits_script(name) or (isinstance(edit, AddStatement | EditLoop) and edits.script.is_file())
        ):
            continue
        try:
            making.make(name)
        except DiagnoseError:
            if name in edits.diffs or patch_of(name) is None:
                raise
    return making.texts, making.made


class _Texts:
    """Files with several changes, each of which is made in the file as it stands."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._each: dict[Path, dict[str, str]] = {}  # by file and change, its text with that change
        self.texts: dict[Path, str] = {}
        self.made: dict[str, str] = {}  # by the id of a change, how

    def make(self, name: str) -> None:
        """Make one change more.

        Raises:
            CannotApply: it does not fit the files, or the changes made before.
            UsageError: libcst is not installed, or the script is no Python.
        """
        found, how = self._with(name)
        each = {path: {**self._each.get(path, {}), name: after} for path, after in found.items()}
        texts = {path: merged(_text(path), afters) for path, afters in each.items()}
        self._each |= each
        self.texts |= texts
        self.made[name] = how

    def _with(self, name: str) -> tuple[dict[Path, str], str]:
        """Return the text of each file that a change edits, with it, and how it is made."""
        script, diff = self._edits.script, self._edits.diffs.get(name, "")
        if diff:
            named = {self._edits.cwd / file: file for file in files_of(diff)}
            patches = {path: patched(_text(path), file, diff) for path, file in named.items()}
            fitting = {path: after for path, after in patches.items() if after is not None}
            if misfits := ", ".join(named[path] for path in patches.keys() - fitting.keys()):
                raise CannotApply(f"{name} cannot be made: its diff does not fit {misfits}.")
            return fitting, f"{name}, the printed diff of {', '.join(named.values())}"
        if not script.is_file():
            raise CannotApply(f"{name} is made in the text of a script, and the file of this module is not known.")
        if name == OWN_EDIT:
            if self._edits.own is None:
                raise CannotApply(f"{OWN_EDIT} needs --against FILE, the script with your edit.")
            return {script: _text(self._edits.own)}, f"your edit, {self._edits.own.name}"
        after, why = edited_source(_text(script), str(script), name, self._edits.arguments.get(name, {}))
        if why:
            raise CannotApply(f"{name} cannot be made: {why}.")
        return {script: after}, f"{name}, in the text of {script.name}"


def module_file(name: str, folder: Path) -> Path | None:
    """Return the file that ``python -m`` runs for a module below the folder, None if it lies elsewhere."""
    path = folder.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if os.path.isfile(file)), None)


def script_of(command: str, folder: Path) -> Path | None:
    """Return the file that a recorded command runs, if it lies in the folder where the command says."""
    first, *others = shlex.split(command) or [""]
    file = module_file(others[0], folder) if first == "-m" and others else folder / first
    return file if file is not None and os.path.isfile(file) else None  # an odd name is no file


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


def edited_source(source: str, script: str, name: str, arguments: Mapping[str, object]) -> tuple[str, str]:
    """Return the source with a change, and why it is as it was ("" if it is not).

    Raises:
        UsageError: libcst is not installed, or the source is no Python that it can parse.
    """
    try:
        import libcst
    except ImportError as error:
        raise UsageError(
            "Changes in a script's text need the package libcst, which is missing here: install torch-diagnose again."
        ) from error
    from diagnose.changes.edits.script_edits import edited_tree

    edit = CHANGES[name].edit
    if edit is None:
        return source, "its page shows the code"
    try:
        tree = libcst.parse_module(source)
    except libcst.ParserSyntaxError as error:
        raise UsageError(f"{script} cannot be parsed as Python: {error.message}") from error
    changed, why = edited_tree(tree, edit, arguments)
    return changed.code, why


def diffs_of(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the printed diffs by id: a trial makes these changes by them."""
    return {p.id: p.diff for p in diagnosis.prescriptions if p.diff and not p.arguments.get("by_hand")}


def with_diffs(diagnosis: Diagnosis, script: Path | None, folder: Path | None = None) -> Diagnosis:
    """Return the diagnosis with the diffs that apply in a folder, and with one for every edit that fits the script.

    A diff that does not apply there is not printed, nor run: its prescription keeps the example. So does one whose edit
    does not fit, and each without libcst.

    Args:
        diagnosis: Has the prescriptions, some of them with a diff of calls that the capture holds.
        script: The file that the command runs; without one, files are edited whose lines the capture holds.
        folder: The working folder unless given.
    """
    here = folder or Path.cwd()
    found = tuple(_as_printed(here, _with_diff(diagnosis, p, script)) for p in diagnosis.prescriptions)
    if all(new is old for new, old in zip(found, diagnosis.prescriptions, strict=True)):
        return diagnosis
    further = tuple(p for p in diagnosis.also_possible if p.id not in {new.id for new in found})
    return replace(diagnosis, prescriptions=separated(found), also_possible=further)


def _as_printed(folder: Path, p: Prescription) -> Prescription:
    """Return a prescription whose diff, if it has one, applies in the folder, and is what a trial runs."""
    if not p.diff:
        return p
    if applies_in(folder, p.diff):
        return replace(p, trial_method="by hand" if p.arguments.get("by_hand") else "edited copy")
    return replace(p, diff="", edits=(), trial_method="patch" if patch_of(p.id) else "by hand")


def _with_diff(diagnosis: Diagnosis, p: Prescription, script: Path | None) -> Prescription:
    edit = CHANGES[p.id].edit if p.id in CHANGES else None
    if p.diff or p.arguments.get("by_hand") or not isinstance(edit, AddStatement | EditLoop):
        return p
    other = p
    for file, name in _files(diagnosis, p, script):
        if isinstance(edit, AddStatement) and (script is None or not file.samefile(script)):
            continue  # a setting of the whole process
        made = _edited(diagnosis, p, file, script)
        if made is None:
            continue
        before, after, why = made
        if after != before:
            edits = tuple(
                replace(w, file=name) for w in _edited_lines(before, after, lines_of(diagnosis, p.rule, file))
            )
            return replace(p, diff=file_diff(before, after, name), edits=edits)
        if isinstance(edit, EditLoop) and why and why == edit.gains_nothing:
            found = [f for f in diagnosis.findings if f.rule == p.rule]
            other = next((also for f in found for also in also_possible(f, diagnosis.step_ns)), p)
    return other


def _edited_lines(before: str, after: str, named: Sequence[int]) -> Iterator[Where]:
    """Yield the lines that are replaced; without any, those that something is added to.

    These are lines after which it is added, but for a line that is ``named`` and before which it is.
    """
    old = before.splitlines()
    parts = difflib.SequenceMatcher(None, old, after.splitlines(), autojunk=False).get_opcodes()
    replaced = [first + 1 for kind, first, *_ in parts if kind in ("replace", "delete")]
    added = [first + 1 if first + 1 in named else max(first, 1) for kind, first, *_ in parts if kind == "insert"]
    for line in dict.fromkeys(replaced or added):
        if line <= len(old):
            yield Where(line=line, code=old[line - 1].strip())


def _files(diagnosis: Diagnosis, p: Prescription, script: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the script and the finding's own files, each with its name from the working folder."""
    here = Path.cwd().resolve()
    named = [Path(w.file) for f in diagnosis.findings if f.rule == p.rule for w in f.where if w.file and not w.library]
    # A module that is imported from the script's folder is named from there.
    others = [script, *named, *(script.parent / name for name in named)] if script else named
    for file in dict.fromkeys(path.resolve() for path in others if os.path.isfile(path)):
        if file.is_relative_to(here) and file.stat().st_size <= 2_000_000:  # written by hand
            yield file, file.relative_to(here).as_posix()


def _edited(diagnosis: Diagnosis, p: Prescription, file: Path, script: Path | None) -> tuple[str, str, str] | None:
    """Return the source before and after the edit, and why it is the same.

    None if the file has changed since the recording, or the edit shows a credential.
    """
    device = "cuda" if diagnosis.queue else "cpu"
    arguments = {**p.arguments, "device": device, "lines": lines_of(diagnosis, p.rule, file)}
    try:
        before = file.read_bytes().decode()
        if not _is_as_recorded(diagnosis, file, before, otherwise=script is not None):
            return None
        after, why = edited_source(before, file.name, p.id, arguments)
        ast.parse(after)
    except (OSError, ValueError, SyntaxError, UsageError):
        return None
    shown = file_diff(before, after, "")
    is_safe = "\r" not in before and all(mask_code(line) == line for line in shown.splitlines())
    return (before, after, why) if is_safe else None


def _is_as_recorded(diagnosis: Diagnosis, file: Path, text: str, *, otherwise: bool) -> bool:
    """Return whether the lines that findings hold of a file are in it, ``otherwise`` if they hold none."""
    lines = dict(enumerate(text.splitlines(), 1))
    places = (w for f in diagnosis.findings for w in _places_in(file, f))
    known = [(lines.get(w.line, "").strip(), w.code) for w in places if w.code and w.line]
    # A statement on several lines is held as one, which begins with the first.
    return all(line and code.startswith(mask_code(line)) for line, code in known) if known else otherwise


def lines_of(diagnosis: Diagnosis, rule: str, script: Path) -> tuple[int, ...]:
    """Return the lines of the script that the rule's finding names, and those of its examples."""
    found = (place for f in diagnosis.findings if f.rule == rule for place in _places_in(script, f))
    return tuple(sorted({place.line for place in found if place.line}))


def _places_in(file: Path, finding: Finding) -> Iterator[Where]:
    """Yield the places of a finding and of its examples that are in a file.

    A trace's name of a file is data and no pattern: the end of its path is compared.
    """
    parts = file.resolve().parts
    for place in (*finding.where, *(example.where for example in finding.examples)):
        name = Path(place.file or "").parts
        if name and parts[-len(name) :] == name:
            yield place
