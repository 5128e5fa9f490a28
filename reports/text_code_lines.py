"""The code of a change for a terminal: lines that can be pasted, and where the whole diff is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

from rich.text import Text

from diagnose.model.diagnosis import Prescription
from diagnose.reports.format import plural
from diagnose.reports.language import tr
from diagnose.text.plain_text import clean, one_line

__all__ = ["code_block", "code_lines"]

_DIFF = r"[+-]"
_COMMENTED = r"(?P<margin> *)(?P<code>(?:[^#+\- ].*?)?) *# +(?P<comment>.*)$"


def code_block(
    fix: Prescription, lines: Sequence[str], most: int, width: int, written: Sequence[Path] | None
) -> Iterator[Text]:
    """Yield the first ``most`` lines of code, each in parts that fit, how many are left, and where the whole diff is.

    A single line more is shown, as its number would take a line too. ``written`` are the files that hold whole diffs,
    None outside of a command.
    """
    most += len(lines) == most + 1
    for line in lines[:most]:
        yield from (Text.assemble(("    │ ", "dim"), part) for part in _folded(line, width - 12))
    if len(lines) > most:
        yield Text(f"    │ … {plural(len(lines) - most, 'more line')}", style="dim")
    if fix.diff:
        yield Text(f"    {_whole_diff(fix, written)}", style="dim")


def code_lines(fix: Prescription, *, neighbours: int = 1) -> list[str]:
    """Return the lines of the diff that change something, each with so many before and after; without one the code."""
    if not fix.diff:
        return clean(fix.after).rstrip().splitlines()
    lines = [line for line in clean(fix.diff).splitlines() if not line.startswith(("---", "+++", "@@", "\\"))]
    changed = [line.startswith(("+", "-")) for line in lines]
    return [line for at, line in enumerate(lines) if any(changed[max(at - neighbours, 0) : at + neighbours + 1])]


def _whole_diff(fix: Prescription, written: Sequence[Path] | None) -> str:
    """Return where the diff is that the lines shown are taken from."""
    if fix.apply_with:
        return tr("an excerpt; {command} makes the change", command=one_line(fix.apply_with))
    if written:
        return tr("an excerpt; {file} has the whole diff", file=one_line(str(written[0])))
    if written is not None:
        return tr("an excerpt; -o report.html writes the whole diff")
    return tr("an excerpt; an HTML or JSON report has the whole diff")


def _folded(line: str, width: int) -> list[str]:
    """Return a line of code in parts that fit; code that is to be pasted is never cut.

    A comment behind code that is too long goes before it, and its further lines are comments too.
    """
    commented = re.match(_COMMENTED, line) if len(line) > width else None
    if commented is not None and all(commented["code"].count(quote) % 2 == 0 for quote in "'\""):
        margin = commented["margin"][: width // 2]
        parts = wrap(commented["comment"], width, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
        return parts + (_folded(margin + commented["code"], width) if commented["code"] else [])
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = wrap(line, width - 2, subsequent_indent=indent[: width // 2], break_on_hyphens=False, drop_whitespace=False)
    return [part + _continued("".join(parts[: at + 1])) for at, part in enumerate(parts[:-1])] + (parts[-1:] or [""])


def _continued(code: str) -> str:
    """Return what ends a part of a line: a backslash where no bracket is open and no string."""
    is_open = any(code.count(a) != code.count(b) for a, b in ("()", "[]", "{}")) or any(
        code.count(q) % 2 for q in "'\""
    )
    return "" if is_open or re.match(_DIFF, code) else "\\" if code.endswith(" ") else " \\"
