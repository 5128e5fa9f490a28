"""``diagnose explain``: the page of a rule, a change or an advice, or the list of all of them."""

from __future__ import annotations

import difflib
import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.errors import UsageError
from diagnose.text.pages import Page, parse_page
from diagnose.text.plain_text import columns, one_line

if TYPE_CHECKING:
    from diagnose.analyzers.common.advice import Advice

KINDS = {
    "trust": "a limitation of the recording",
    "idle": "idle time",
    "kernel": "busy device time",
    "state": "the machine and its memory",
    "run": "the whole run",
    "rank": "several ranks",
}
LOSSES = {  # what a trial checks, by the promise of a change
    "identical": "The losses must be identical.",
    "rounding": "The losses may differ by rounding.",
    "reduced": "The losses may differ by the reduced precision.",
    None: "Its losses are not compared: the training is another.",
}


@dataclass(frozen=True, slots=True)
class ExplainRequest(ResultRequest):
    """What ``diagnose explain`` was asked for; without a name, everything there is."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class RulePage:
    """A rule as it is explained: its id, its kind, its docstring, and the changes that it can prescribe."""

    id: str
    kind: str
    page: Page
    changes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the page as JSON has it."""
        return {
            "type": "rule",
            "id": self.id,
            "kind": self.kind,
            "summary": self.page.summary,
            "sections": dict(self.page.sections),
            "changes": list(self.changes),
        }


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A change as it is explained: its docstring, and a sentence for each field of its ``CHANGE``."""

    id: str
    title: str
    page: Page
    numbers: str  # what it may do to the results
    trial: str  # how it is measured
    patch: str  # how it is written into a script
    remedy: str  # the module that does it, or ""
    rules: tuple[str, ...]  # that prescribe it
    is_advice: bool = False

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """Return heading and text of all sections: those of the docstring, then those of the fields."""
        fields = (
            ("Numbers", self.numbers),
            ("Trial", self.trial),
            ("Patch", self.patch),
            ("Remedy", self.remedy),
            ("Prescribed by", ", ".join(self.rules)),
        )
        return (*self.page.sections, *((heading, text) for heading, text in fields if text))

    def to_dict(self) -> dict[str, object]:
        """Return the page as JSON has it."""
        return {
            "type": "change",
            "id": self.id,
            "title": self.title,
            "sections": dict(self.page.sections),
            "numbers": self.numbers,
            "trial": self.trial,
            "patch": self.patch,
            "remedy": self.remedy,
            "rules": list(self.rules),
        }


def titles() -> dict[str, str]:
    """Return the title of each change, and of all that rules advise, by id."""
    from diagnose.analyzers import ADVICE
    from diagnose.changes import CHANGES

    found = {name: advice_title(entries[-1].title) for listed in ADVICE.values() for name, entries in listed.items()}
    return dict(sorted((found | {name: change.title for name, change in CHANGES.items()}).items()))


def explain_and_answer(request: ExplainRequest) -> None:
    """Print the page that was asked for, or the list.

    Raises:
        UsageError: there is neither a rule nor a change of that name.
        OutputError: the file cannot be written.
    """
    files = plan_text(request)
    rules = {rule.id: rule for rule in rule_pages()}
    if request.name is None:
        listed = {
            "rules": [{"id": rule.id, "kind": rule.kind, "summary": rule.page.summary} for rule in rules.values()],
            "changes": [{"id": name, "title": title} for name, title in titles().items()],
        }
        answer_text(lambda: "\n".join(_list(rules.values())), lambda: _json(listed), request, files)
        return
    name = _known(request.name, [*rules, *titles()])
    page = rules[name] if name in rules else change_page(name)
    answer_text(lambda: "\n".join(_text(page)), lambda: _json(page.to_dict()), request, files)


def rule_pages() -> Iterator[RulePage]:
    """Yield the rules in the order of their ids, those of plug-ins too."""
    from diagnose.analyzers import RULES

    for rule in sorted(RULES, key=attrgetter("META.id")):
        meta = rule.META
        yield RulePage(meta.id, meta.kind, parse_page(rule.__doc__ or ""), meta.changes)


def change_page(name: str) -> ChangePage:
    """Return the page of a change, or of what rules advise."""
    from diagnose.analyzers import ADVICE, RULES
    from diagnose.changes import CHANGES, trial_method, trial_words

    rules = tuple(sorted(rule.META.id for rule in RULES if name in rule.META.changes))
    if name not in CHANGES:
        entries = [entry for listed in ADVICE.values() for entry in listed.get(name, ())]
        return _advice_page(entries, rules)
    change = CHANGES[name]
    losses = "" if trial_method(name) == "by hand" else f" {LOSSES[change.numerics.promise]}"
    return ChangePage(
        id=name,
        title=change.title,
        page=parse_page(CHANGES.page(name)),
        numbers=_sentence(change.numerics.safety),
        trial=f"{trial_words(name)}{losses}",
        patch="prove --write-patch writes it into the script." if change.edit else "Its code is pasted by hand.",
        remedy=change.remedy,
        rules=rules,
    )


def _advice_page(entries: Sequence[Advice], rules: tuple[str, ...]) -> ChangePage:
    """Return the page of one advice: the code of each of its forms, and what to watch."""
    first = entries[-1]  # the most general one
    watch = " ".join(dict.fromkeys(entry.watch for entry in entries if entry.watch))
    needs = "; ".join(dict.fromkeys(entry.needs for entry in entries if entry.needs))
    sections = (("What it needs", _sentence(needs)), ("What to watch", watch))
    return ChangePage(
        id=first.id,
        title=advice_title(first.title),
        page=Page(advice_title(first.title), tuple((heading, text) for heading, text in sections if text)),
        numbers=_sentence(first.numerics.safety),
        trial="Advice: no trial applies it.",
        patch="Its code is pasted by hand.",
        remedy=first.remedy,
        rules=rules,
        is_advice=True,
    )


def advice_title(template: str) -> str:
    """Return the title of an advice without what a finding fills in."""
    plain = template.replace("{at}", "").replace("{there}", "")
    return re.sub(r"\{[^}]*\}", "…", plain)


def _sentence(clause: str) -> str:
    return clause and f"{clause[0].upper()}{clause[1:].rstrip('.')}."


def _known(name: str, names: Sequence[str]) -> str:
    """Return the id that is meant; a file's name, with underscores, is one too."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in names:
        return wanted
    similar = difflib.get_close_matches(wanted, names, cutoff=0.7)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "diagnose explain lists all of them."
    raise UsageError(f"Unknown rule or change '{one_line(name)}': {hint}")


def _list(rules: Collection[RulePage]) -> Iterator[str]:
    width = (
        columns() if sys.stdout is not None and sys.stdout.isatty() else None
    )  # in a file and in a pipe lines are whole
    column = max(map(len, titles())) + 2
    for kind, words in KINDS.items():
        yield f"Rules about {words}:"
        for rule in (rule for rule in rules if rule.kind == kind):
            yield _shortened(f"  {rule.id:<{column}}{rule.page.summary}", width)
        yield ""
    yield "Changes:"
    for name, title in titles().items():
        yield _shortened(f"  {name:<{column}}{title}", width)


def _text(page: RulePage | ChangePage) -> Iterator[str]:
    if isinstance(page, ChangePage):
        yield f"{page.id}: {'advice' if page.is_advice else 'a change'}"
        yield from _sections(page.title, page.sections)
        return
    yield f"{page.id}: a rule about {KINDS[page.kind]}"
    yield from _sections(page.page.summary, page.page.sections)
    if page.changes:
        yield "\nChanges"
        yield from (line for name in page.changes for line in _indented(f"{name}: {titles()[name]}", hanging=4))


def _sections(first: str, sections: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield from textwrap.wrap(first, columns())
    for heading, text in sections:
        yield f"\n{heading}"
        yield from _indented(text)


def _indented(text: str, hanging: int = 0) -> list[str]:
    """Return a paragraph of a section; ids, options and dotted names stay whole."""
    rest = " " * (4 + hanging)
    return textwrap.wrap(
        text,
        columns(),
        initial_indent="    ",
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _json(content: Mapping[str, object]) -> str:
    return json.dumps({"schema_version": 1, **content}, indent=2, ensure_ascii=False)


def _shortened(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1].rstrip() + "…"
