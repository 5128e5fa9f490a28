"""Commands as a user pastes them into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def command_line(words: Iterable[str]) -> str:
    """Return words as one printable line that bash and zsh split into the same words."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def command_words(line: str) -> list[str]:
    """Return the words of a line to compare them; those of one that no shell takes, as parts between spaces."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split(" ")


def _escaped(char: str) -> str:
    """Return a character as it stands within ``$'…'``; bytes that are no UTF-8 are kept as they were."""
    if char.isprintable():
        return f"\\{char}" if char in "\\'" else char
    try:
        data = char.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "?"  # half of a character
    return "".join(f"\\x{byte:02x}" for byte in data)
