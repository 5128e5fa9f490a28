"""A catalogue of translations: a file as gettext's tools write it, ``msgid "English"`` and ``msgstr`` below."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from diagnose.text.patterns import lazy_pattern

__all__ = ["read_catalogue"]

_ENTRY = lazy_pattern(r'^msgid (?P<id>"(?:.*)"(?:\n".*")*)\nmsgstr (?P<text>"(?:.*)"(?:\n".*")*)$', re.MULTILINE)


def read_catalogue(text: str) -> Mapping[str, str]:
    """Return the translations by their English text; the file's own header and what is not translated are left out."""
    found = {_string(entry["id"]): _string(entry["text"]) for entry in _ENTRY.finditer(text)}
    return {english: shown for english, shown in found.items() if english and shown}


def _string(quoted: str) -> str:
    """Return a string in double quotes, that may go on in the next lines; its escapes are those of JSON."""
    return "".join(json.loads(line) for line in quoted.split("\n"))
