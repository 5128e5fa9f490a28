"""Prints changes as diffs of the script where the command has it at hand: the edits that `--write-patch` makes.

A capture holds the calls that make loaders and optimizers, and their diffs need no file. The other edits need the
source. Of those the script that the command was given is read, and files below the working folder that a finding of
this very run names; nothing else is.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.changes import CHANGES
from diagnose.changes.common.change import AddStatement, EditLoop
from diagnose.changes.common.prescribe import also_possible
from diagnose.changes.common.separate_diffs import separated
from diagnose.errors import UsageError
from diagnose.model.locations import Where
from diagnose.text.masking import mask_code
from diagnose.trials.outcome import lines_of
from diagnose.trials.source_edits import edited_source, file_diff

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = ["with_diffs"]

MAX_BYTES = 2_000_000  # of a source file: far more than anybody writes by hand


def with_diffs(diagnosis: Diagnosis, script: Path) -> Diagnosis:
    """Return the diagnosis with a diff of the script for every prescription whose edit can be made in it.

    A prescription that has a diff keeps it; one whose edit does not fit keeps its example. So do all without libcst.
    """
    found = tuple(_with_diff(diagnosis, p, script) for p in diagnosis.prescriptions)
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
            return replace(p, diff=file_diff(before, after, name), edits=_edits(before, after, name))
        if isinstance(edit, EditLoop) and why and why == edit.gains_nothing:
            other = _first_further(diagnosis, p)
    return other


def _first_further(diagnosis: Diagnosis, p: Prescription) -> Prescription:
    """Return the first further change of the same rule that fits, ``p`` itself if none does."""
    found = (also for f in diagnosis.findings if f.rule == p.rule for also in also_possible(f, diagnosis.step_ns))
    return next(found, p)


def _files(diagnosis: Diagnosis, p: Prescription, script: Path) -> Iterator[tuple[Path, str]]:
    """Yield the script and the finding's own files, each with its name from the working folder."""
    here = Path.cwd().resolve()
    named = [w.file for f in diagnosis.findings if f.rule == p.rule for w in f.where if w.file and not w.library]
    beside = [script.parent / name for name in named]  # a module that is imported from there is named from there
    for file in dict.fromkeys(path.resolve() for path in (script, *map(Path, named), *beside)):
        if file.is_relative_to(here) and file.is_file() and file.stat().st_size <= MAX_BYTES:
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


def _edits(before: str, after: str, name: str) -> tuple[Where, ...]:
    """Return the lines to edit: those that are replaced, else those behind which something is added."""
    old, new = before.splitlines(), after.splitlines()
    parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    replaced = [first for kind, first, *_ in parts if kind in ("replace", "delete")]
    behind = [max(first - 1, 0) for kind, first, *_ in parts if kind == "insert"]
    return tuple(Where(name, line + 1, code=old[line].strip()) for line in replaced or behind if line < len(old))
