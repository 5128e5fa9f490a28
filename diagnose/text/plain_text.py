"""Text of a user, a trace or a file, made harmless for whoever reads it: the one place that every output goes through.

A name may hold an escape sequence, a mark that turns the direction of writing around, a character without width, or
ten thousand letters. Each of these could steer a terminal, or make a report read other than it is; here all of it
becomes visible.
"""

from __future__ import annotations

import inspect
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

from diagnose.text.patterns import lazy_pattern

__all__ = [
    "MASK",
    "MAX_LINE",
    "MAX_WIDTH",
    "MIN_WIDTH",
    "Page",
    "clean",
    "columns",
    "duration",
    "enumeration",
    "growth",
    "in_encoding",
    "is_utf8",
    "line_of",
    "lower_first",
    "mask_code",
    "mask_command",
    "mask_text",
    "mask_values",
    "middle",
    "one_line",
    "parse_page",
    "percent",
    "place_of",
    "plural",
    "size_words",
    "whole_line",
]

# Masks credentials in commands, messages and quoted source lines, so that captures and reports can be shared.
#
# Three things are masked: values whose own form is that of a credential (``hf_…``, a JWT, the password in a URL),
# values behind a name that can only be a credential's (``--api-key``, ``WANDB_API_KEY``, ``wandb.api_key``), and
# random-looking values behind a name that may be one (``--my-token``, ``--key``). Numbers, switches, references to
# variables and paths to files stay. Every pattern begins at a boundary that its own characters exclude, so the time is
# linear.

MASK = "***"

_Tier: TypeAlias = Literal["sure", "maybe", "none"]

# Forms that nothing else has. The longest run of their characters is taken, then its length is checked.
_PREFIXED = lazy_pattern(
    r"(?<![\w.\-])(?:hf_|api_org_|sk-|sk_live_|rk_live_|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|AIza|"
    r"ya29\.|eyJ|npm_|pypi-|dckr_pat_|nvapi-|gsk_|r8_|dop_v1_|SG\.|xai-|pk-lf-|dapi(?=[0-9a-f]{32}))(?P<rest>[\w.\-]+)",
    re.ASCII,
)
_MIN_REST = 16  # an AWS key id has 16 characters behind its prefix, every other form has more
_OPENAI = lazy_pattern(r"(?<![\w.\-])sk-(?:proj|ant|svcacct|admin)-\w{16}[\w\-]*", re.ASCII)  # also one without a digit
_BOT = lazy_pattern(  # of Telegram: a number and a word; of Discord: three words
    r"(?<![\w.\-])(?:(?:bot)?\d{6,12}:[\w\-]{30,64}|[MNO][\w\-]{20,30}\.[\w\-]{6}\.[\w\-]{25,50})(?![\w.\-])", re.ASCII
)
_WEBHOOK = lazy_pattern(
    r"((?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks|"
    r"\.webhook\.office\.com/webhookb2|/open-apis/bot/v2/hook)/)[^\s\"'?#]+"
)
_BEARER = lazy_pattern(r"(?<!\w)(Bearer|Basic) {1,3}([\w.~+/=\-]+)", re.ASCII | re.IGNORECASE)
_MIN_BEARER = 8
_PRIVATE_KEY = lazy_pattern(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-\"']*(-----END)?")
_URL_PASSWORD = lazy_pattern(r"(://[^\s/:@]*:)[^\s/]+@")
_URL_USER = lazy_pattern(r"://([^\s/:@]+)@")
_LOGIN = lazy_pattern(r"(?<![^\s=,\"'])([A-Za-z][\w.+\-]{0,63}:)([^\s/:@\"',]{1,256})@(?!sha\d)(?=[\w\[])", re.ASCII)

# A name and what parts it from its value: an equals sign or a colon, perhaps behind a closing quote and bracket, or,
# after an option, a space.
_NAME = lazy_pattern(r"(?<![\w.\-])([\w.\-]+)([\"']?\]?\s{0,3}(?::(?![:/])|=(?!=))\s{0,3}| {1,3}(?=[^\s\-]))", re.ASCII)
_QUOTED = lazy_pattern(r"([rbfu]{0,2}([\"']))((?:(?!\2)[^\\\n]|\\.)*)\2", re.IGNORECASE)
_BEGIN = lazy_pattern(r"[\"']?([^\s,;&\"'(){}\[\]<>=]{1,256})")  # of a value without quotes: enough to judge it by
_BARE = lazy_pattern(r"[\"']?[^\s,;&\"'(){}\[\]<>]+")
_COOKIE = lazy_pattern(r"[^\s;\"'=]+=[^\s;\"']*(?:; ?[^\s;\"'=]+=[^\s;\"']*)*")
_ANNOTATION = lazy_pattern(
    r"(?:[A-Za-z_][\w.\[\]| ,\"']{0,64}?|\"[^\"\n]{1,64}\" {0,3}|'[^'\n]{1,64}' {0,3})=(?!=)\s{0,3}"
)
# A tuple, a list, or what takes a user and a password.
_GROUP = lazy_pattern(r"(?:\w{0,64}(?:Auth|Credentials?))?[(\[][^)\]\n]{0,256}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CAMEL = lazy_pattern(r"(?<=[a-z])(?=[A-Z])")
_PARTS = lazy_pattern(r"[_\-.]+")
_ALNUM = lazy_pattern(r"[A-Za-z0-9]{16,}")

_SECRETS = _words(
    "secret password passwd passphrase credential apikey authkey accesskey secretkey privatekey authtoken accesstoken"
    " apitoken hftoken authorization"
)
_ALONE = _words("token auth pwd pw pass bearer otp totp pin")  # secrets only where they are the whole name
_PASSES = _words("pass pwd pw")
_ACCOUNTS = _words("db database smtp imap mail email ftp proxy http https redis mysql postgres pg mongo root")
_OWNERS = _words(  # a token or key of one of these is a credential; an eos_token or a sort_key is none
    "api access secret private auth oauth oauth2 bearer session security refresh id jwt personal login user account"
    " service client app application admin master signing encryption deploy license subscription storage registry hub"
    " hf huggingface wandb comet neptune clearml mlflow databricks dagshub aws azure gcp google s3 minio github gh"
    " gitlab git openai anthropic cohere replicate together groq mistral nvidia ngc slack discord telegram bot pypi npm"
    " docker kaggle sentry webhook sas pat ssh"
)
_ABOUT = _words(  # a name that ends so is about a credential and holds none
    "file path dir folder name env var variable len length size num count type field policy dim index idx url uri"
    " column id ids ttl expiry timeout mode class min max prob rate ratio level jar"
)
_SWITCHES = _words("use no has is require requires disable enable with skip needs allow")
_IN_URLS = _words("token key sig signature credential code auth pass password secret apikey")
_NOTHING = _words("true false none null yes no on off auto default required optional")
_PATH = lazy_pattern(r"(?:\.{1,2}|~\w*|/(?:home|root|run|etc|var|tmp|mnt|usr|opt|data|srv|workspace|Users))/")
_HEX = lazy_pattern(r"[0-9a-f]+")
_NUMBER = lazy_pattern(r"[+-]?\d[\d_]{0,11}(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words with every credential replaced by ``MASK``; an option's value may be the next word."""
    return tuple(_mask_word(word, before) for word, before in zip(words, ("", *words), strict=False))


def mask_text(text: str) -> str:
    """Return a message, a command in one line or other plain text with every credential replaced by ``MASK``."""
    return _mask_assigned(_mask_forms(text), code=False)


def mask_code(line: str) -> str:
    """Return source code in which credentials that stand in it as literals are replaced by ``MASK``."""
    return _mask_assigned(_mask_forms(line), code=True)


def mask_values(value: object, name: str = "") -> object:
    """Return decoded JSON with every credential in its strings and behind its keys replaced by ``MASK``."""
    if isinstance(value, dict):
        return {key: mask_values(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask_values(inner, name) for inner in value]
    if isinstance(value, bool) or value is None or not _is_secret(name, str(value)):
        return mask_text(value) if isinstance(value, str) else value
    return MASK


def _mask_word(word: str, before: str) -> str:
    name, equals, value = word.partition("=")
    if equals and not any(c.isspace() or c in "?&:" for c in name) and _is_secret(name, value):
        return f"{name}={MASK}"
    if before.startswith("-") and "=" not in before and not word.startswith("-") and _is_secret(before, word):
        return MASK
    return mask_text(word)


def _mask_forms(text: str) -> str:
    text = _PRIVATE_KEY.sub(rf"\1{MASK}", text)
    text = _URL_PASSWORD.sub(rf"\1{MASK}@", text)
    text = _URL_USER.sub(lambda m: f"://{MASK}@" if _is_random(m[1]) else m[0], text)
    text = _LOGIN.sub(rf"\1{MASK}@", text)
    text = _BOT.sub(MASK, _OPENAI.sub(MASK, _WEBHOOK.sub(rf"\1{MASK}", text)))
    text = _PREFIXED.sub(lambda m: MASK if len(m["rest"]) >= _MIN_REST and _has_digit(m["rest"]) else m[0], text)
    return _BEARER.sub(lambda m: f"{m[1]} {MASK}" if _is_bearer(m[2]) else m[0], text)


def _is_bearer(value: str) -> bool:
    return len(value) >= _MIN_BEARER and (_has_digit(value) or not value.islower())


def _mask_assigned(text: str, *, code: bool) -> str:
    return "".join(_assigned(text, code=code))


def _assigned(text: str, *, code: bool) -> Iterator[str]:
    """Yield the text in pieces, the values of credentials replaced."""
    at = 0
    while found := _NAME.search(text, at):
        yield text[at : found.end()]
        masked, at = _value(found, code=code)
        yield masked
    yield text[at:]


def _value(found: re.Match[str], *, code: bool) -> tuple[str, int]:
    """Return what takes the place of a name's value, and where it ends; nothing, and its begin, for one that stays."""
    text, at, name = found.string, found.end(), found[1]
    by = found[2].strip(" \t\r\n\"']")
    in_url = text[max(found.start() - 1, 0) : found.start()] in ("?", "&") and _parts(name)[-1] in _IN_URLS
    if not (by or name.startswith("-")) or not (in_url or _tier(name) != "none"):
        return "", at
    annotation = _ANNOTATION.match(text, at) if code and by == ":" else None
    start = annotation.end() if annotation else at
    literals = _QUOTED.match(text, start) or (_GROUP.match(text, start) if code else None)
    if literals:
        masked = _QUOTED.sub(lambda one: _masked(one, name), literals[0])
        return (f"{text[at:start]}{masked}", literals.end()) if masked != literals[0] else ("", at)
    if code:
        return "", at
    return _word(found, in_url=in_url, is_message=by == ":" and not _PARTS.search(name))


def _word(found: re.Match[str], *, in_url: bool, is_message: bool) -> tuple[str, int]:
    """Return what `_value` does, of a value without quotes; "invalid token: expected a name" is a message."""
    text, at, name = found.string, found.end(), found[1]
    begin = _BEGIN.match(text, at)
    if begin is None or not (_is_secret(name, begin[1]) or (in_url and not _is_harmless(begin[1]))):
        return "", at
    whole = _COOKIE.match(text, at) if _parts(name)[-1] == "cookie" else None
    if whole is None and is_message and not _is_random(begin[1], 8):
        return "", at
    whole = whole or _BARE.match(text, at)
    return MASK, whole.end() if whole else at


def _masked(quoted: re.Match[str], name: str) -> str:
    return f"{quoted[1]}{MASK}{quoted[2]}" if _is_secret(name, quoted[3]) else quoted[0]


def _is_secret(name: str, value: str) -> bool:
    """Return whether what stands behind a name is a credential."""
    tier = _tier(name)
    if tier == "none" or _is_harmless(value):
        return False
    if tier == "maybe":
        return _is_random(value)
    return not (_NUMBER.fullmatch(value) and _parts(name)[-1] in {"token", "key", "auth"})


def _tier(name: str) -> _Tier:
    parts = _parts(name)
    last = parts[-1]
    if last in _ABOUT and not {"access", "key"} <= set(parts):  # AWS_ACCESS_KEY_ID
        return "none"
    if parts[0] in _SWITCHES:
        return "maybe"
    if not _SECRETS.isdisjoint(parts) or last == "cookie" or (len(parts) == 1 and last in _ALONE):
        return "sure"
    if last in {"token", "key", *_PASSES} or {"access", "key"} <= set(parts):
        owners = _OWNERS | _ACCOUNTS if last in _PASSES else _OWNERS
        return "maybe" if owners.isdisjoint(parts[:-1]) and "access" not in parts else "sure"
    if last == "signature" and not {"amz", "goog"}.isdisjoint(parts):
        return "sure"
    return "maybe" if last in {"api", "auth", "p", "pat", "sig", "signature"} else "none"


def _parts(name: str) -> list[str]:
    """Return the lower-case words of the last part of a dotted name, plurals without their s."""
    last = name.strip("-.+~_\"'").rpartition(".")[2]
    words = [w.lower() for w in _PARTS.split(_CAMEL.sub("_", last) if not last.isupper() else last) if w]
    return [
        w.removesuffix("s") if w.removesuffix("s") in {*_SECRETS, "token", "key", "cookie"} else w for w in words
    ] or [""]


def _is_harmless(value: str) -> bool:
    """Return whether a value is a switch, a count, a reference to a variable, a path or a placeholder."""
    value = value.strip("\"'")
    if not value or (len(value) <= 2 and value.isdecimal()):
        return True
    return value.lower() in _NOTHING or value[0] in "$<@" or value == MASK or bool(_PATH.match(value))


def _is_random(value: str, least: int = 16) -> bool:
    """Return whether a value holds a run of letters and digits that no word or number looks like."""
    if least < 16:
        return len(value) >= least and _has_digit(value) and any(map(str.isalpha, value))
    return any(_changes(run) >= 4 or _is_mixed(run) for run in _ALNUM.findall(value))


def _is_mixed(run: str) -> bool:
    """Return whether letters and digits make a hexadecimal number, or three kinds of characters a long word."""
    if not _has_digit(run):
        return False
    if _HEX.fullmatch(run):
        return not run.isdigit()
    return len(run) >= 20 and run != run.lower() and run != run.upper()


def _changes(run: str) -> int:
    """Return how often letters and digits take turns."""
    digits = [char.isdigit() for char in run]
    return sum(a != b for a, b in pairwise(digits))


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


# Where code that was recorded stands: file, line and name, as a report shows them.


def place_of(called: Callable[..., object]) -> str:
    """Return file, line and name of a function: of a wrapped one, a method, or an object that is called."""
    while isinstance(called, partial):
        called = called.func
    called = inspect.unwrap(called)
    code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
    name: str = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{_from_here(code.co_filename)}:{code.co_firstlineno} in {name}" if code is not None else name


def line_of(frame: FrameType) -> str:
    """Return the file and line that a frame stands at."""
    return f"{_from_here(frame.f_code.co_filename)}:{frame.f_lineno}"


def _from_here(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


# A docstring as a page: one sentence, then sections, each a heading and an indented text.


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its first line, and heading and text of each section; a text is one paragraph without line breaks."""

    summary: str
    sections: tuple[tuple[str, str], ...]


def parse_page(docstring: str) -> Page:
    """Split a docstring at its headings, the lines without an indentation."""
    summary, _, rest = docstring.partition("\n")
    found = re.findall(r"^(\S.*)\n((?:[ ]{4}.*\n|\n)+)", rest + "\n", re.MULTILINE)
    return Page(summary, tuple((heading, " ".join(body.split())) for heading, body in found))


# Titles within sentences.

NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


def lower_first(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]


# Times and shares as every report writes them, so that one number reads the same everywhere.


def duration(ns: float | None) -> str:
    """Return a time given in ns with three digits and the unit that suits it: µs, ms or s."""
    if ns is None or not math.isfinite(ns):
        return "–"
    if ns == 0:
        return "0 ms"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage, of one digit after the point, never rounding something to nothing or to all."""
    if share is None or not math.isfinite(share):
        return "–"
    least = 10.0**-digits
    if 0 < share < least / 200:
        return f"<{least:g} %"
    if 1 - least / 200 <= share < 1:
        return f">{100 - least:g} %"
    return f"{100 * share:.{digits}f} %"


def growth(share: float | None, digits: int = 1) -> str:
    """Return by what share something became longer: "100 %" is twice as long; no whole bounds it."""
    if share is None or share <= 0.5:
        return percent(share, digits)
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else percent(share, digits)


def enumeration(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    *front, last = words
    return f"{', '.join(front)} and {last}" if front else last


def plural(count: float, noun: str) -> str:
    """Return "1 step", "12 steps", "2 copies": a count as it is rounded, and its noun."""
    shown = f"{count:,.0f}"
    if shown == "1":
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{shown} {noun[:-1]}ies"
    return f"{shown} {noun}{'es' if noun.endswith('ch') else 's'}"


def size_words(num_bytes: float) -> str:
    """Return "16 bytes", "8.2 kB", "18.9 MB" or "1.20 GB"."""
    if num_bytes < 1e3:
        return plural(num_bytes, "byte")
    if num_bytes < 1e5:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


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
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(char if _has(encoding, char) else _DRAWN.get(char, "?") for char in text)
    return text


def _has(encoding: str, char: str) -> bool:
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


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
