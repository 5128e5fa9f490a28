"""A sentence as data: a template and the values that fill it. Reports format it, in the language that they show."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from diagnose.text.numbers import plural


class Count(NamedTuple):
    """A number of things, such as "12 steps"."""

    num: float
    noun: str  # in the singular


class Words(NamedTuple):
    """A template with named placeholders; a value is shown as it is, but for `Words` and `Count`."""

    template: str
    values: Mapping[str, object] = MappingProxyType({})


def english(words: Words | Count | object) -> str:
    """Return the sentence in English."""
    if isinstance(words, Count):
        return plural(words.num, words.noun)
    if not isinstance(words, Words):
        return str(words)
    text = words.template
    for name, value in words.values.items():
        text = text.replace(f"{{{name}}}", english(value))
    return text
