"""Words of which a regular expression needs one: a text that holds none of them need not be searched.

To look for a word takes a twentieth of the time of a search, and of the names of kernels most match no pattern.
"""

from __future__ import annotations

from functools import lru_cache

ANY = ("",)  # every text holds it: the pattern has to be searched
MIN_LENGTH = 3  # a shorter word is in every other name
_PUNCTUATION = frozenset(r".()[]{}+*?|^$\/-<>:,_ ")  # these stand for themselves behind a backslash


@lru_cache(maxsize=1024)
def needed_words(pattern: str) -> tuple[str, ...]:
    """Return words of which each match of a case-sensitive pattern holds one, `ANY` where no such words are seen.

    They are the longest plain text of each alternative, groups left out.
    """
    words = []
    for alternative in _alternatives(pattern):
        longest = max(alternative, key=len, default="")
        if len(longest) < MIN_LENGTH:
            return ANY
        words.append(longest)
    return tuple(dict.fromkeys(words))


def _alternatives(pattern: str) -> list[list[str]]:
    """Return the plain texts of each alternative outside of groups, in any order."""
    found: list[list[str]] = [[""]]
    i = 0
    while i < len(pattern):
        char, texts, width = pattern[i], found[-1], 1
        if char == "|":
            found.append([""])
        elif char in "([":
            width = (_group if char == "(" else _set)(pattern, i) - i
            texts.append("")
        elif char in "?*{":  # what stands before it may be missing
            texts[-1] = texts[-1][:-1]
            texts.append("")
            width = pattern.index("}", i) - i + 1 if char == "{" else 1
        elif char == "\\":
            width = 2
            if pattern[i + 1] in _PUNCTUATION:
                texts[-1] += pattern[i + 1]
            else:
                texts.append("")
        elif char in ".^$+":
            texts.append("")
        else:
            texts[-1] += char
        i += width
    return found


def _group(pattern: str, at: int) -> int:
    """Return the place behind a group."""
    i, depth = at, 0
    while True:
        char = pattern[i]
        if char == "[":
            i = _set(pattern, i)
            continue
        depth += (char == "(") - (char == ")")
        i += 2 if char == "\\" else 1
        if not depth:
            return i


def _set(pattern: str, at: int) -> int:
    """Return the place behind a set of characters."""
    i = at + (2 if pattern[at + 1] == "^" else 1)
    i += pattern[i] == "]"  # the first one is a character
    while pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1
