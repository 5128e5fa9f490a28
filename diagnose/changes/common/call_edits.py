"""Edits the calls that a capture holds, and makes a diff of the script of them.

A change is printed so, as a unified diff of the user's own lines: the dataset's variable, samplers, parameter groups
and whatever else a call passes are kept, since only the new arguments are written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from diagnose.changes.common.call_arguments import parsed_call, passed, set_arguments
from diagnose.changes.common.change import REMOVED
from diagnose.model.records import CallRecord

_OPTIONS = frozenset({"args", "arguments", "flags", "FLAGS", "opt", "opts", "options"})  # of a command line


@dataclass(frozen=True, slots=True)
class EditedCall:
    """A call with other arguments."""

    call: CallRecord
    after: str

    @property
    def shown_before(self) -> str:
        """Return the lines of the call as they stand, without the indentation of the first one."""
        return _dedented(text_of(self.call), self.call)

    @property
    def shown_after(self) -> str:
        """Return the lines of the call as they will stand, without the indentation of the first one."""
        return _dedented(self.after, self.call)

    @property
    def line(self) -> str:
        """Return the line that the call begins in."""
        return self.call.lines[self.call.begin[0] - self.call.first].strip()


def _dedented(text: str, call: CallRecord) -> str:
    line = call.lines[call.begin[0] - call.first]
    indent = line[: len(line) - len(line.lstrip())]
    start, end = line[len(indent) : call.begin[1]], call.lines[call.end[0] - call.first][call.end[1] :].rstrip()
    return start + "\n".join(part.removeprefix(indent) for part in text.split("\n")) + end


def calls_in(facts: Mapping[str, object], names: Sequence[str]) -> list[CallRecord]:
    """Return the calls among the facts of a finding that make one of these; those of one place once."""
    found: dict[tuple[str, tuple[int, int]], CallRecord] = {}
    for made in _records(facts):
        call = call_of(made)
        if call is not None and call.name in names:
            found.setdefault((call.file, call.begin), call)
    return list(found.values())


def _records(facts: Mapping[str, object]) -> Iterable[object]:
    yield facts.get("made")
    ddp, others = facts.get("ddp"), facts.get("others")
    if isinstance(ddp, Mapping):
        yield ddp.get("made")
    for other in others if isinstance(others, list | tuple) else ():
        if isinstance(other, Mapping):
            yield other.get("made")


def call_of(made: object) -> CallRecord | None:
    """Return the call of a record; None where its places do not lie in its lines, as in a capture that was edited."""
    try:
        call = msgspec.convert(made, CallRecord)
    except msgspec.ValidationError:
        return None
    inside = call.first <= call.begin[0] <= call.end[0] < call.first + len(call.lines)
    return call if inside and call.begin <= call.end else None


def text_of(call: CallRecord) -> str:
    """Return the call's own text."""
    top, bottom = call.begin[0] - call.first, call.end[0] - call.first
    if top == bottom:
        return call.lines[top][call.begin[1] : call.end[1]]
    return "\n".join(
        [call.lines[top][call.begin[1] :], *call.lines[top + 1 : bottom], call.lines[bottom][: call.end[1]]]
    )


def edited(call: CallRecord, values: Mapping[str, object]) -> EditedCall | None:
    """Return the call with these arguments, None where it cannot take them or stands so already."""
    given = {name for name, value in values.items() if value is not REMOVED}
    if not call.takes_any and not given <= set(call.parameters):
        return None
    after, why = set_arguments(text_of(call), values, parameters=call.parameters, spread=call.spread)
    return None if why or after == text_of(call) else EditedCall(call, after)


def passed_by(call: CallRecord) -> dict[str, object]:
    """Return the arguments that a call passes, as far as they can be read in its text."""
    return passed(text_of(call), call.parameters, call.spread or ())


def settings_of(edits: Sequence[EditedCall], values: Mapping[str, object]) -> list[str]:
    """Return clauses that name the script's own settings, such as args.workers, which give a number that is edited."""
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    given = ((name, argument_of(edit.call, name), value) for edit in edits for name, value in numbers.items())
    return list(
        dict.fromkeys(
            f"in the script {ast.unparse(node)} sets {name}: {_setting(node, value)}"
            for name, node, value in given
            if isinstance(node, ast.Attribute)
        )
    )


def other_classes_of(edits: Sequence[EditedCall]) -> list[str]:
    """Return clauses that name calls through a variable, such as opt_class(...): another run may make another class."""
    parsed = [(edit.call.name, parsed_call(text_of(edit.call))) for edit in edits]
    called = {ast.unparse(call.func): made for made, call in parsed if call is not None}
    lasts = {name: name.rpartition(".")[2] for name in called}
    variables = [name for name, made in called.items() if lasts[name][:1].islower() and lasts[name] != made]
    return [f"{name} may be another class in another run, which has to take this too" for name in variables]


def argument_of(call: CallRecord, name: str) -> ast.expr | None:
    """Return what a call passes for an argument, None where it does not or not in a way that is known."""
    parsed = parsed_call(text_of(call))
    if parsed is None:
        return None
    named = next((keyword.value for keyword in parsed.keywords if keyword.arg == name), None)
    if named is not None or name not in call.parameters[: len(parsed.args)]:
        return named
    return (
        None if any(isinstance(arg, ast.Starred) for arg in parsed.args) else parsed.args[call.parameters.index(name)]
    )


def _setting(node: ast.Attribute, value: object) -> str:
    """Return how a setting is given another value: an option of the command line, or an assignment."""
    if ast.unparse(node.value).rpartition(".")[2] not in _OPTIONS:
        return f"{ast.unparse(node)} = {value}"
    option = f"--{node.attr.replace('_', '-')} {value}"
    return option if "_" not in node.attr else f"{option}, or --{node.attr} {value}"


def diff_of(edits: Sequence[EditedCall]) -> str:
    """Return the unified diff of the calls, as git applies it; "" without any."""
    files: dict[str, list[EditedCall]] = {}
    for edit in edits:
        files.setdefault(edit.call.file, []).append(edit)
    return "".join(_file_diff(file, parts) for file, parts in sorted(files.items()))


def _file_diff(file: str, edits: list[EditedCall]) -> str:
    """Return the diff of one file: a hunk for each call, or for several whose surroundings meet."""
    import difflib  # few answers print a diff

    name = file.lstrip("/")
    text, shift = f"--- a/{name}\n+++ b/{name}\n", 0
    for region in _regions(edits):
        before, after = region.before, region.after
        body = list(difflib.unified_diff(before, after, n=len(before)))[3:]
        text += f"@@ -{region.first},{len(before)} +{region.first + shift},{len(after)} @@\n"
        text += "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in body)
        shift += len(after) - len(before)
    return text


@dataclass(frozen=True, slots=True)
class _Region:
    """Lines of a file that follow each other, with the edits within."""

    first: int
    lines: tuple[str, ...]
    edits: tuple[EditedCall, ...]
    ends_file: bool

    @property
    def before(self) -> list[str]:
        """Return the lines as they stand, with their ends."""
        return _with_ends("\n".join(self.lines), self.ends_file)

    @property
    def after(self) -> list[str]:
        """Return the lines with every edit made; of calls within each other the outer one's."""
        text, limit = "\n".join(self.lines), sum(len(line) + 1 for line in self.lines)
        for edit in sorted(self.edits, key=lambda one: one.call.begin, reverse=True):
            start, end = self._offset(edit.call.begin), self._offset(edit.call.end)
            if end <= limit:
                text, limit = text[:start] + edit.after + text[end:], start
        return _with_ends(text, self.ends_file)

    def _offset(self, place: tuple[int, int]) -> int:
        return sum(len(line) + 1 for line in self.lines[: place[0] - self.first]) + place[1]


def _with_ends(text: str, ends_file: bool) -> list[str]:
    """Return lines with their ends; the last line of a file has one only where an empty line follows."""
    return (text if ends_file else text + "\n").splitlines(keepends=True)


def _regions(edits: Sequence[EditedCall]) -> list[_Region]:
    regions: list[_Region] = []
    for edit in sorted(edits, key=lambda one: one.call.begin):
        call = edit.call
        new = _Region(call.first, call.lines, (edit,), call.ends_file)
        last = regions[-1] if regions else None
        if last is not None and call.first <= last.first + len(last.lines):
            known = last.first + len(last.lines) - call.first
            ends = last.ends_file or call.ends_file
            new = _Region(last.first, last.lines + call.lines[known:], (*last.edits, edit), ends)
            regions.pop()
        regions.append(new)
    return regions
