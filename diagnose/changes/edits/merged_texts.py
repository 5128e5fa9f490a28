"""Puts several edits of one text together, each of which was made in it as it stands.

An edit is what it replaces in the text before: lines that are added or left out, and within other lines words. So no
edit moves the lines of another one, and two may change one call.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from diagnose.changes.common.change import CannotApply

__all__ = ["merged"]

_Part: TypeAlias = tuple[int, int, str]  # the first character that is replaced, the one after the last, and by what
_WORDS = r"\w+|[^\S\n]+|\n|[^\w\s]"


def merged(before: str, afters: Mapping[str, str]) -> str:
    """Return a text with the edits of several changes; ``afters`` has by id the text with each of them alone.

    What two changes edit alike is edited once.

    Raises:
        CannotApply: two of them replace the same words, or all together are no Python.
    """
    each: dict[_Part, str] = {}
    for name, after in afters.items():
        for part in _parts(before, after):
            each.setdefault(part, name)
    pieces, end, last = list[str](), 0, ""
    for (start, stop, new), name in sorted(each.items(), key=lambda one: one[0][:2]):
        if start < end:
            raise CannotApply(f"{name} cannot be made: it edits what {last} edits.")
        pieces += before[end:start], new
        end, last = stop, name
    text = "".join((*pieces, before[end:]))
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise CannotApply(f"{' and '.join(afters)} cannot be made together: {error}.") from error
    return text


def _parts(before: str, after: str) -> Iterator[_Part]:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    for start, stop, changed in _differences(old, new):
        lines, others = before[start:stop], re.findall(_WORDS, changed)
        for first, end, words in _differences(re.findall(_WORDS, lines), others) if lines and others else ():
            yield start + first, start + end, words
        if not (lines and others):
            yield start, stop, changed


def _differences(old: list[str], new: list[str]) -> Iterator[_Part]:
    places = [0]
    for each in old:
        places.append(places[-1] + len(each))
    for kind, first, last, begin, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield places[first], places[last], "".join(new[begin:end])
