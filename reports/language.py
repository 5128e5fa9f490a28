"""The language in which reports are shown: one catalogue of translations, keyed by the English text.

Placeholders have names. ``tr`` is for texts that are filled in where they are shown. ``translated`` is for finished
English sentences, as a diagnosis and its JSON hold them: they are matched with the catalogue's, whatever stands at the
placeholders. What the catalogue does not have is shown in English.

A placeholder whose name begins with ``num`` stands for a number, ``{s}`` for the ending of a plural, any other for any
text. ``{cause!t}`` in a translation is what stood at ``{cause}``, translated as well.

A catalogue is a file as gettext's tools write it, ``msgid "English"`` and ``msgstr`` below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from diagnose.model.limits import ENGLISH, LANGUAGES

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, Trial, Waterfall

__all__ = [
    "ENGLISH",
    "LANGUAGES",
    "counted",
    "current",
    "language",
    "localized",
    "read_catalogue",
    "tr",
    "translated",
]

_CURRENT: ContextVar[str] = ContextVar("language", default=ENGLISH)
_ENTRY = re.compile(r'^msgid (?P<id>"(?:.*)"(?:\n".*")*)\nmsgstr (?P<text>"(?:.*)"(?:\n".*")*)$', re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(\w+)(!t)?\}")
_ENDS: Final = re.compile(r"(?<=[.;]) (?=\S)")
_HEAD: Final = 4  # characters that sentences are looked up by
_TOUCHING: Final = r"(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9<>])|(?<=[A-Za-z0-9%])(?=[\u4e00-\u9fff])"
"""Between Chinese and Latin characters, where good typesetting has a space."""
_COUNT: Final = re.compile(r"(?P<num>[\d.,]+) (?P<noun>\w[\w ]*?)s?")


@contextmanager
def language(name: str) -> Iterator[None]:
    """Show texts in a language within the block."""
    before = _CURRENT.set(name)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def current() -> str:
    """Return the language that texts are shown in."""
    return _CURRENT.get()


def tr(english: str, **values: object) -> str:
    """Return a text in the current language, with its placeholders filled in."""
    return _filled(_texts(current()).get(english, english), values)


def counted(shown: str, noun: str) -> str | None:
    """Return a count and its noun in the current language, None in English and where the noun is not known."""
    found = _texts(current()).get(f"{{num}} {noun}")
    return _filled(found, {"num": shown}) if found is not None else None


def translated(text: str) -> str:
    """Return a finished English text in the current language, sentence by sentence where it is not known as a whole."""
    name = current()
    whole = text if name == ENGLISH else _matched(text, name)
    if whole is not None:
        return whole
    parts = _ENDS.split(text)
    found = [_matched(part.removesuffix(";"), name) for part in parts]
    if len(parts) == 1 or not any(found):
        return text
    shown = (old if new is None else new + "；" * old.endswith(";") for old, new in zip(parts, found, strict=True))
    return re.sub(r"(?<=[。；：，]) ", "", " ".join(shown))  # no space follows a Chinese sentence


def _filled(text: str, values: Mapping[str, object]) -> str:
    def value(found: re.Match[str]) -> str:
        shown = str(values.get(found[1], found[0]))
        return translated(shown) if found[2] else shown

    filled = _PLACEHOLDER.sub(value, text) if values else text
    return re.sub(_TOUCHING, " ", filled) if current() != ENGLISH else filled


@cache
def _texts(name: str) -> Mapping[str, str]:
    """Return the catalogue of a language; English has none."""
    if name == ENGLISH:
        return {}
    from importlib import resources  # brings tempfile, lzma and bz2: a megabyte that English does not need

    return read_catalogue(
        resources.files("diagnose.reports").joinpath("templates").joinpath(f"{name}.po").read_text(encoding="utf-8")
    )


@cache
def _patterns(name: str) -> Mapping[str, list[tuple[re.Pattern[str], str]]]:
    """Return the texts with placeholders as patterns, by how they begin, the most specific first."""
    found: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    texts = _texts(name)
    # A text with fewer letters besides its placeholders would be found in others.
    filled = (e for e in texts if _PLACEHOLDER.search(e) and (_letters(e) >= 6 or e.endswith(".")))
    for english in sorted(filled, key=_letters, reverse=True):
        start = english.partition("{")[0][:_HEAD]
        found.setdefault(start, []).append((_pattern(english), texts[english]))
    return found


def _letters(english: str) -> int:
    return sum(map(str.isalpha, _PLACEHOLDER.sub("", english)))


def _pattern(english: str) -> re.Pattern[str]:
    parts, at, seen = [], 0, set[str]()
    for found in _PLACEHOLDER.finditer(english):
        parts.append(re.escape(english[at : found.start()]))
        at, name = found.end(), found[1]
        kind = r"[\d.,]+" if name.startswith("num") else "(?:e?s)?" if name == "s" else ".*?"
        parts.append(f"(?P={name})" if name in seen and name != "s" else kind if name == "s" else f"(?P<{name}>{kind})")
        seen.add(name)
    return re.compile("".join([*parts, re.escape(english[at:])]), re.DOTALL)


@cache
def _matched(text: str, name: str) -> str | None:
    """Return the translation of a text, None where the catalogue has none."""
    texts = _texts(name)
    if text in texts:
        return texts[text]
    if (count := _COUNT.fullmatch(text)) is not None and (noun := f"{{num}} {count['noun']}") in texts:
        return _filled(texts[noun], {"num": count["num"]}).strip()
    starts = (text[:n] for n in range(min(_HEAD, len(text)), -1, -1))
    for pattern, chinese in (p for start in starts for p in _patterns(name).get(start, ())):
        if (match := pattern.fullmatch(text)) is not None:
            return _filled(chinese, match.groupdict())
    # Of a recording without steps evidence counts in all; the catalogue has what it is of each step.
    ways = (" a step", " per step") if " in all" in text else ()
    each = next(filter(None, (_matched(text.replace(" in all", way), name) for way in ways)), None)
    return each.replace(texts["a step"], texts["in all"]) if each is not None else None


def read_catalogue(text: str) -> Mapping[str, str]:
    """Return the translations by their English text; the file's own header and what is not translated are left out."""
    found = {_string(entry["id"]): _string(entry["text"]) for entry in _ENTRY.finditer(text)}
    return {english: shown for english, shown in found.items() if english and shown}


def _string(quoted: str) -> str:
    """Return a string in double quotes, that may go on in the next lines; its escapes are those of JSON."""
    return "".join(json.loads(line) for line in quoted.split("\n"))


def localized(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis with its sentences in the current language; ids, names, code and numbers stay."""
    if current() == ENGLISH:
        return d
    return replace(
        d,
        headline=translated(d.headline),
        findings=tuple(map(_finding, d.findings)),
        prescriptions=tuple(map(_prescription, d.prescriptions)),
        also_possible=tuple(map(_prescription, d.also_possible)),
        trust=tuple(note._replace(text=translated(note.text)) for note in d.trust),
        trials=tuple(map(_trial, d.trials)),
        legends={rule: legend._replace(label=translated(legend.label)) for rule, legend in d.legends.items()},
        waterfall=_waterfall(d.waterfall) if d.waterfall is not None else None,
        after=localized(d.after) if d.after is not None else None,
    )


def _finding(f: Finding) -> Finding:
    return replace(f, title=translated(f.title), evidence=tuple(map(translated, f.evidence)))


def _prescription(p: Prescription) -> Prescription:
    return replace(
        p,
        title=translated(p.title),
        safety=translated(p.safety),
        needs=translated(p.needs),
        assumes=translated(p.assumes),
    )


def _trial(t: Trial) -> Trial:
    return replace(t, title=translated(t.title), note=translated(t.note), failure=translated(t.failure))


def _waterfall(w: Waterfall) -> Waterfall:
    forecasts = tuple(f._replace(title=translated(f.title)) for f in w.forecasts)
    return w._replace(forecasts=forecasts, bound_by=translated(w.bound_by))
