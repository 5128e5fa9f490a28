"""Text of a user, a trace or a file, made harmless for whoever reads it: the one place that every output goes through.

A name may hold an escape sequence, a mark that turns the direction of writing around, a character without width, or
ten thousand letters. Each of these could steer a terminal, or make a report read other than it is; here all of it
becomes visible.
"""

from __future__ import annotations

import codecs
import unicodedata

MIN_WIDTH, MAX_WIDTH = 60, 100  # columns: narrower, columns of numbers no longer fit; wider is harder to read

MAX_LINE = 1000  # characters of a line; lines of source and kernels' full names are shorter, and no reader reads more
# Control characters (C0, C1, DEL), formats (direction marks, joiners, zero-width, byte order mark), halves of surrogate
# pairs, and the separators of lines and paragraphs. Python calls none of them printable.
# One character for one, so that columns stay where they are.
_DRAWN = dict(zip("█▓▒░·▁▂▃▄▅▆▇▏▎▍▌▋▊▉×−–—…µ→│≥≤’‘“”\u00a0", "#=-.,_.:-=+*--=====x---~u>|><''\"\" ", strict=True))
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: str) -> str:
    r"""Return ``text`` with every unsafe character as an escape such as ``\x1b``, and long lines cut in their middle.

    Line ends stay, as newlines; tabs become spaces.
    """
    if len(text) <= MAX_LINE and text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(middle(_visible(line.expandtabs(4)), MAX_LINE) for line in lines)


def one_line(text: str) -> str:
    """Return ``clean`` text on one line, line ends as single spaces."""
    if len(text) <= MAX_LINE and text.isprintable():
        return text
    return middle(" ".join(filter(None, map(str.strip, clean(text).split("\n")))), MAX_LINE)


def whole_line(text: str) -> str:
    """Return text on one line with nothing left out, since a command cut in its middle is another one."""
    return _visible(text)


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 has the text; a path may hold any bytes, and text of JSON half a character."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def columns() -> int:
    """Return how wide text for standard output is: as COLUMNS or the terminal has it, from 60 to 100 columns."""
    import shutil  # and with it every library that compresses

    return min(max(shutil.get_terminal_size((MAX_WIDTH, 0)).columns, MIN_WIDTH), MAX_WIDTH)


def in_encoding(text: str, encoding: str | None) -> str:
    """Return the text with what the encoding does not have drawn in ASCII: bars, blocks, signs."""
    encoding = encoding or "ascii"
    return text.encode(encoding, "diagnose.drawn").decode(encoding)


def _drawn(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_DRAWN.get(char, "?") for char in error.object[error.start : error.end]), error.end


codecs.register_error("diagnose.drawn", _drawn)


def middle(text: str, limit: int) -> str:
    """Return ``text`` with its middle replaced by "…" where it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return text[: limit - 1 - tail] + "…" + (text[-tail:] if tail else "")


def _visible(line: str) -> str:
    return line if line.isprintable() else "".join(map(_escaped, line))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in _UNSAFE else char
