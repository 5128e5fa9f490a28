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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.errors import UsageError
from diagnose.text.pages import Page, parse_page
from diagnose.text.plain_text import one_line

__all__ = ["ExplainRequest", "RulePage", "explain_and_answer", "rule_pages"]

MAX_WIDTH = 100  # of a text that is read, in columns
SIMILAR = 0.5  # of difflib: an id with a few letters wrong has more
KINDS = {
    "trust": "a limitation of the recording",
    "idle": "idle time",
    "kernel": "busy device time",
    "state": "the machine and its memory",
    "rank": "several ranks",
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


def explain_and_answer(request: ExplainRequest) -> None:
    """Print the page that was asked for, or the list.

    Raises:
        UsageError: there is neither a rule nor a change of that name.
        OutputError: the file cannot be written.
    """
    files = plan_text(request)
    rules = {rule.id: rule for rule in rule_pages()}
    if request.name is None:
        answer_text(lambda: "\n".join(_list(rules)), lambda: _json(_all(rules)), request, files)
        return
    rule = rules[_known(request.name, rules)]
    answer_text(lambda: "\n".join(_rule_text(rule)), lambda: _json(rule.to_dict()), request, files)


def rule_pages() -> Iterator[RulePage]:
    """Yield the rules in the order of their ids, read from the sources of ``diagnose.analyzers``."""
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
    literal = {k.arg: ast.literal_eval(k.value) for k in meta.keywords if k.arg in {"id", "kind", "changes"}}
    page = parse_page(ast.get_docstring(tree) or "")
    return RulePage(literal["id"], literal["kind"], page, tuple(literal.get("changes", ())))


def _known(name: str, names: Sequence[str] | dict[str, RulePage]) -> str:
    """Return the id that is meant; a file's name, with underscores, is one too."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in names:
        return wanted
    similar = difflib.get_close_matches(wanted, names, n=3, cutoff=SIMILAR)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "diagnose explain lists all of them."
    raise UsageError(f"Unknown rule or change '{one_line(name)}': {hint}")


def _list(rules: dict[str, RulePage]) -> Iterator[str]:
    width = _width() if sys.stdout.isatty() else None  # in a file and in a pipe lines are whole
    column = max(map(len, rules)) + 4
    for kind, words in KINDS.items():
        yield f"Rules about {words}:"
        for rule in (rule for rule in rules.values() if rule.kind == kind):
            yield _shortened(f"  {rule.id:<{column - 2}}{rule.page.summary}", width)
        yield ""


def _rule_text(rule: RulePage) -> Iterator[str]:
    yield f"{rule.id}: a rule about {KINDS[rule.kind]}"
    yield ""
    yield from _sections(rule.page)


def _sections(page: Page) -> Iterator[str]:
    width = _width()
    yield from textwrap.wrap(page.summary, width)
    for heading, text in page.sections:
        yield ""
        yield heading
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")


def _all(rules: dict[str, RulePage]) -> dict[str, object]:
    return {"rules": [{"id": r.id, "kind": r.kind, "summary": r.page.summary} for r in rules.values()]}


def _json(content: dict[str, object]) -> str:
    return json.dumps({"schema_version": 1, **content}, indent=2, ensure_ascii=False)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def _shortened(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1].rstrip() + "…"
