"""Keeps the printed diffs of one script apart: each applies to it as it is, and also where others were applied before.

A diff's context may hold a line that another one edits, as where a DataLoader and an optimizer are made one below the
other. Such context is left out, as far as git needs none of it. Of edits to two lines without one between them the
upper one has to be applied first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.model.diagnosis import Prescription

__all__ = ["applies_in", "files_of", "patched", "separated"]

_FILE = r"^--- a/(?P<name>.*)$"
_HUNK = r"^@@ -(?P<old>\d+)(?:,(?P<before>\d+))? \+(?P<new>\d+)(?:,(?P<after>\d+))? @@$"  # no number: one line
CHANGES, NO_END = ("-", "+"), "\\"
FUZZ = 2  # lines of context that GNU patch leaves out by itself


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Lines of one file that follow each other, with the edits in them."""

    head: tuple[str, ...]  # the file's two lines, before its first hunk
    file: str
    old: int  # number of the first line, before and after the edit
    new: int
    body: tuple[str, ...]

    def edited(self) -> set[tuple[str, int]]:
        """Return the lines that are replaced or removed, or behind which one is added."""
        found, number = set(), self.old
        for line in self.body:
            if line.startswith(CHANGES):
                found.add((self.file, number if line[0] == "-" else number - 1))
            number += line[0] in " -"
        return found

    def adds_behind(self) -> set[tuple[str, int]]:
        """Return the line behind which the hunk begins by adding lines."""
        first = next(i for i, line in enumerate(self.body) if line.startswith(CHANGES))
        return {(self.file, self.old + first - 1)} if self.body[first][0] == "+" else set()

    def without(self, others: set[tuple[str, int]], added: set[tuple[str, int]]) -> _Hunk:
        """Return the hunk without the context that others edit or add lines behind, and what lies beyond."""
        edits = [i for i, line in enumerate(self.body) if line.startswith(CHANGES)]
        first, last = edits[0], edits[-1]
        above = others | (added & self.adds_behind())
        start = max((i + 1 for i in range(first) if (self.file, self.old + i) in above), default=0)
        behind = range(last + 1, len(self.body))
        after = self.old + sum(line[0] in " -" for line in self.body[: last + 1])
        end = next((i for n, i in enumerate(behind) if (self.file, after + n) in others), len(self.body))
        if end == last + 1:  # git takes an edit without context behind it for one of the file's end
            end = len(self.body)
        start, end = _balanced(start, first, last, end)
        if end < len(self.body) and self.body[end].startswith(NO_END):
            end += 1
        return replace(self, old=self.old + start, new=self.new + start, body=self.body[start:end])

    def fits(self, lines: Sequence[str]) -> bool:
        """Return whether the file's lines are those that the hunk edits."""
        before = [line[1:] for line in self.body if line[0] in " -"]
        return list(lines[self.old - 1 : self.old - 1 + len(before)]) == before

    def text(self) -> str:
        """Return the hunk as it stands in a diff."""
        before, after = (sum(line[0] in kinds for line in self.body) for kinds in (" -", " +"))
        lines = (*self.head, f"@@ -{self.old},{before} +{self.new},{after} @@", *self.body)
        return "\n".join(lines) + "\n"


def _balanced(start: int, first: int, last: int, end: int) -> tuple[int, int]:
    """Return where a hunk begins and ends with as much context before its edits as behind them.

    GNU patch takes a hunk with less context on one side for one at that end of the file, but for `FUZZ` lines.
    """
    before, behind = first - start, end - last - 1
    if not behind:
        return start, end  # which it is
    kept = max(min(before, behind), FUZZ)
    return max(start, first - kept), min(end, last + 1 + kept)


def separated(prescriptions: Sequence[Prescription]) -> tuple[Prescription, ...]:
    """Return the prescriptions with diffs that do not stand in each other's way."""
    hunks = [list(_hunks(p.diff)) for p in prescriptions]
    edited = [set().union(*(hunk.edited() for hunk in one)) for one in hunks]
    added = [set().union(*(hunk.adds_behind() for hunk in one)) for one in hunks]
    found = []
    for i, p in enumerate(prescriptions):
        others = set().union(*(lines for k, lines in enumerate(edited) if k != i)) - edited[i]
        beside = set().union(*(lines for k, lines in enumerate(added) if k != i))
        found.append(replace(p, diff="".join(hunk.without(others, beside).text() for hunk in hunks[i])))
    return tuple(found)


def applies_in(folder: Path, diff: str) -> bool:
    """Return whether git applies a diff in a folder, and its files stay Python."""
    hunks = list(_hunks(diff))
    try:
        files = {hunk.file: (folder / hunk.file).read_bytes().decode().split("\n") for hunk in hunks}
    except (OSError, ValueError):
        return False
    if not all(hunk.fits(files[hunk.file]) for hunk in hunks):
        return False
    for hunk in sorted(hunks, key=lambda one: one.old, reverse=True):
        num = sum(line[0] in " -" for line in hunk.body)
        files[hunk.file][hunk.old - 1 : hunk.old - 1 + num] = [line[1:] for line in hunk.body if line[0] in " +"]
    try:
        for lines in files.values():
            ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return False
    return bool(hunks)


def files_of(diff: str) -> tuple[str, ...]:
    """Return the files that a diff edits."""
    return tuple(dict.fromkeys(hunk.file for hunk in _hunks(diff)))


def patched(text: str, file: str, diff: str) -> str | None:
    """Return a file's text with its edits, each at the place nearest to its own, None if one does not fit."""
    lines, shift = text.split("\n"), 0
    for hunk in (hunk for hunk in _hunks(diff) if hunk.file == file):
        before, after = ([line[1:] for line in hunk.body if line[0] in kinds] for kinds in (" -", " +"))
        at, num = hunk.old - 1, len(before)
        places = [i for i in range(len(lines) - num + 1) if lines[i : i + num] == before]
        if not places:
            return None
        place = min(places, key=lambda i: abs(i - at - shift))
        lines[place : place + num] = after
        shift = place - at + len(after) - num
    return "\n".join(lines)


def _hunks(diff: str) -> Iterator[_Hunk]:
    lines = diff.split("\n")[:-1]
    at, file = 0, ""
    head: list[str] = []
    while at < len(lines):
        match = re.match(_HUNK, lines[at])
        at += 1
        if match is None:
            named = re.match(_FILE, lines[at - 1])
            file = named["name"] if named else file
            head.append(lines[at - 1])
            continue
        end = _end_of_hunk(lines, at, int(match["before"] or 1), int(match["after"] or 1))
        yield _Hunk(tuple(head), file, int(match["old"]), int(match["new"]), tuple(lines[at:end]))
        at, head = end, []


def _end_of_hunk(lines: Sequence[str], at: int, before: int, after: int) -> int:
    """Return where a hunk ends that has so many lines before and after the edit."""
    while at < len(lines) and (before or after or lines[at].startswith(NO_END)):
        before -= lines[at][0] in " -"
        after -= lines[at][0] in " +"
        at += 1
    return at
