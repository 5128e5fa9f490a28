"""``diagnose explain``: the page of a rule or of a change, or the list of all of them.

The pages of rules are read from the source of ``diagnose.analyzers`` without importing it: that would import numpy and
the tables, which take longer than everything else here.
"""

from __future__ import annotations

import ast
import difflib
import json
import pkgutil
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.errors import UsageError
from diagnose.model.plugins import installed, load_plugins
from diagnose.text.pages import Page, parse_page
from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from diagnose.changes.common.change import Change

__all__ = ["ChangePage", "ExplainRequest", "RulePage", "change_page", "explain_and_answer", "rule_pages"]

MAX_WIDTH = 100  # of a text that is read, in columns
SIMILAR = 0.7  # of difflib: an id with a few letters wrong has more
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
    former: frozenset[str] = frozenset()  # ids of rules that are gone, whose findings it names

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
    trial: str  # how it is measured, or why it is made by hand
    patch: str  # how it is written into a script, or why it is not
    remedy: str  # the module that does it, or why there is none
    rules: tuple[str, ...]  # that prescribe it

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


def explain_and_answer(request: ExplainRequest) -> None:
    """Print the page that was asked for, or the list.

    Raises:
        UsageError: there is neither a rule nor a change of that name.
        OutputError: the file cannot be written.
    """
    from diagnose.changes import CHANGES

    files = plan_text(request)
    rules = {rule.id: rule for rule in rule_pages()}
    if request.name is None:
        answer_text(lambda: "\n".join(_list(rules.values())), lambda: _json(_all(rules.values())), request, files)
        return
    former = {old: rule.id for rule in rules.values() for old in rule.former if old not in rules}
    name = _known(request.name, [*rules, *CHANGES, *former])
    name = former.get(name, name)
    page = rules[name] if name in rules else change_page(name, rules.values())
    answer_text(lambda: "\n".join(_text(page)), lambda: _json(page.to_dict()), request, files)


def rule_pages() -> Iterator[RulePage]:
    """Yield the rules in the order of their ids, read from the sources of ``diagnose.analyzers``."""
    own = list(_own_rules())
    yield from sorted((*own, *_rules_of_plugins(frozenset(rule.id for rule in own))), key=attrgetter("id"))


def _rules_of_plugins(own: frozenset[str]) -> Iterator[RulePage]:
    """Yield the rules of other packages, which are imported where there are any."""
    if not installed("diagnose.analyzers"):
        return
    from diagnose.model.rules import RuleMeta

    for module in load_plugins("diagnose.analyzers", "META", RuleMeta, own).modules.values():
        meta, page = module.META, parse_page(module.__doc__ or "")
        yield RulePage(meta.id, meta.kind, page, meta.changes)


def _own_rules() -> Iterator[RulePage]:
    package = find_spec("diagnose.analyzers")
    for module in pkgutil.iter_modules(package.submodule_search_locations if package else None):
        spec = None if module.ispkg else module.module_finder.find_spec(module.name, None)
        get_source = getattr(spec and spec.loader, "get_source", None)
        if get_source is not None:
            yield _rule_page(get_source(module.name))


def _rule_page(source: str) -> RulePage:
    tree = ast.parse(source)
    assignments = (node for node in tree.body if isinstance(node, ast.Assign))
    meta = next(node.value for node in assignments if ast.unparse(node.targets[0]) == "META")
    assert isinstance(meta, ast.Call)
    literal = {k.arg: ast.literal_eval(k.value) for k in meta.keywords if k.arg in {"id", "kind", "changes", "former"}}
    page = parse_page(ast.get_docstring(tree) or "")
    former = frozenset(old for _, old in literal.get("former", ()))
    return RulePage(literal["id"], literal["kind"], page, tuple(literal.get("changes", ())), former)


def change_page(name: str, rules: Iterable[RulePage]) -> ChangePage:
    """Return the page of a change; ``rules`` are those that may prescribe it."""
    from diagnose.changes import CHANGES

    change = CHANGES[name]
    return ChangePage(
        id=name,
        title=change.title,
        page=parse_page(CHANGES.module(name).__doc__ or ""),
        numbers=_sentence(change.numerics.safety),
        trial=_trial(change),
        patch=_patch(change),
        remedy=change.remedy or f"No module: {change.without_remedy}.",
        rules=tuple(rule.id for rule in rules if name in rule.changes),
    )


def _trial(change: Change) -> str:
    from diagnose.changes import trial_method, trial_words

    losses = "" if trial_method(change.id) == "by hand" else f" {LOSSES[change.numerics.promise]}"
    return f"{trial_words(change.id)}{losses}"


def _patch(change: Change) -> str:
    from diagnose.changes.common.change import ByHand

    if isinstance(change.edit, ByHand):
        return f"Made by hand: {change.edit.reason}."
    return "prove --write-patch writes it into the script."


def _sentence(clause: str) -> str:
    return clause and f"{clause[0].upper()}{clause[1:].rstrip('.')}."


def _known(name: str, names: Sequence[str]) -> str:
    """Return the id that is meant; a file's name, with underscores, is one too."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in names:
        return wanted
    similar = difflib.get_close_matches(wanted, names, n=3, cutoff=SIMILAR)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "diagnose explain lists all of them."
    raise UsageError(f"Unknown rule or change '{one_line(name)}': {hint}")


def _list(rules: Collection[RulePage]) -> Iterator[str]:
    from diagnose.changes import CHANGES

    width = (
        _width() if sys.stdout is not None and sys.stdout.isatty() else None
    )  # in a file and in a pipe lines are whole
    column = max(map(len, CHANGES)) + 2
    for kind, words in KINDS.items():
        yield f"Rules about {words}:"
        for rule in (rule for rule in rules if rule.kind == kind):
            yield _shortened(f"  {rule.id:<{column}}{rule.page.summary}", width)
        yield ""
    yield "Changes:"
    for name, change in CHANGES.items():
        yield _shortened(f"  {name:<{column}}{change.title}", width)


def _text(page: RulePage | ChangePage) -> Iterator[str]:
    from diagnose.changes import CHANGES

    if isinstance(page, ChangePage):
        yield f"{page.id}: a change"
        yield from _sections(page.title, page.sections)
        return
    yield f"{page.id}: a rule about {KINDS[page.kind]}"
    yield from _sections(page.page.summary, page.page.sections)
    if page.changes:
        yield "\nChanges"
        yield from (line for name in page.changes for line in _indented(f"{name}: {CHANGES[name].title}", hanging=4))


def _sections(first: str, sections: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield from textwrap.wrap(first, _width())
    for heading, text in sections:
        yield f"\n{heading}"
        yield from _indented(text)


def _indented(text: str, hanging: int = 0) -> list[str]:
    """Return a paragraph of a section; ids, options and dotted names stay whole."""
    rest = " " * (4 + hanging)
    return textwrap.wrap(
        text,
        _width(),
        initial_indent="    ",
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _all(rules: Iterable[RulePage]) -> dict[str, object]:
    from diagnose.changes import CHANGES

    return {
        "rules": [{"id": rule.id, "kind": rule.kind, "summary": rule.page.summary} for rule in rules],
        "changes": [{"id": name, "title": change.title} for name, change in CHANGES.items()],
    }


def _json(content: dict[str, object]) -> str:
    return json.dumps({"schema_version": 1, **content}, indent=2, ensure_ascii=False)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def _shortened(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1].rstrip() + "…"
