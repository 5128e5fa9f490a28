"""The frame of every page: one file that needs nothing else, with its styles, its scripts and their hashes.

Everything is escaped by the templates; the page's content security policy lets only the scripts run whose hashes it
names and lets nothing be loaded, so that a string which were to slip through could still do nothing.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from diagnose.model.rules import Legend
from diagnose.reports import format as words
from diagnose.reports.colours import legible
from diagnose.reports.language import ENGLISH, current, tr, translated
from diagnose.text.commands import command_line
from diagnose.text.kernel_names import shorten
from diagnose.text.patterns import lazy_pattern
from diagnose.text.plain_text import clean, middle, whole_line

__all__ = ["environment", "render_page", "texts_of_script"]

_JOINTS: Final = lazy_pattern(r"(?<=[_/.,#<:])(?=\w)|(?<=[a-z])(?=[A-Z])")
_SHOWN_BY_SCRIPT: Final = lazy_pattern(r'\btr\("([^"]+)"')
_KEY: Final = lazy_pattern(r"\[([^\]]+)\]")
HTML_LANGUAGES: Final = {"en": "en", "zh": "zh-Hans"}
_IN_SCRIPT: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render_page(
    template: str,
    *,
    scripts: Sequence[str],
    data: Mapping[str, object],
    legends: Mapping[str, Legend],
    **values: object,
) -> str:
    """Return the page that a template makes; ``scripts`` are files of the templates' folder."""
    sources = [_script(_resource(name)) for name in (["words.js", *scripts] if scripts else ())]
    if current() != ENGLISH:
        data = {**data, "words": {text: tr(text) for source in sources for text in texts_of_script(source)}}
    page = (
        environment()
        .get_template(template)
        .render(
            html_lang=HTML_LANGUAGES[current()],
            colour=lambda cause: legible(legends.get(cause, Legend()).colour),
            label=lambda cause: legends.get(cause, Legend()).label,
            style=Markup(_resource("report.css")),
            scripts=[Markup(source) for source in sources],
            hashes=Markup(" ".join(map(_hash, sources)) or "'none'"),
            data=Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPT)),
            **values,
        )
    )
    return page + "\n"


def texts_of_script(source: str) -> list[str]:
    """Return what a script shows: the texts that it gives to ``tr``."""
    return _SHOWN_BY_SCRIPT.findall(source)


@cache
def environment() -> Environment:
    """Return what turns templates into pages: every value is escaped, and control characters become visible."""
    made = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"_": _text, "keys": _keys}
    made.filters |= {
        "tr": translated,
        "duration": words.duration,
        "percent": words.percent,
        "place": words.place,
        "line": words.line_of,
        "plural": words.plural,
        "ranks": words.ranks,
        "said": words.said,
        "shorten": lambda name: shorten(clean(name)),
        "breakable": _breakable,
        "bytes": words.size,
        "flops": words.flops,
        "whole": lambda text: Markup(escape(whole_line(text))),
        "word": lambda text: Markup(escape(command_line([text]))),
        "middle": lambda text, limit: middle(clean(text), limit),
    }
    return made


def _text(english: str, **values: object) -> Markup:
    """Return a text of the page in the current language; what stands at its placeholders is escaped."""
    shown = {name: value if isinstance(value, Markup) else escape(clean(str(value))) for name, value in values.items()}
    return Markup(tr(english, **shown))


def _keys(english: str) -> Markup:
    """Return a text in which [x] is the key x."""
    return Markup(_KEY.sub(r"<kbd>\1</kbd>", str(escape(tr(english)))))


def _finalize(value: object) -> object:
    """Take control characters out of every text, on its way into the page."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(text: str) -> Markup:
    """Return a long name that a narrow column may break after its punctuation and between its words."""
    return Markup("<wbr>").join(_JOINTS.split(clean(text)))


def _resource(name: str) -> str:
    return resources.files("diagnose.reports").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Return a script as it can stand in a page, with the line ends that a browser hashes."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
