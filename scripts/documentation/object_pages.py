"""A page for each rule and each change: what ``diagnose explain NAME`` prints, with links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rules import GROUPS

from diagnose import analyzers
from diagnose.cli.explain import KINDS, ChangePage, RulePage, change_page, rule_pages, titles
from diagnose.model.rules import RuleMeta

__all__ = ["change_pages", "changes_index", "rules_index", "rules_pages"]

METAS: Mapping[str, RuleMeta] = analyzers.META


def rules_pages() -> dict[str, str]:
    """Return the Markdown of each rule's page by its id."""
    return {page.id: "\n".join(_rule(page, METAS[page.id])) for page in rule_pages() if page.id in METAS}


def change_pages() -> dict[str, str]:
    """Return the Markdown of each change's page by its id."""
    return {name: "\n".join(_change(change_page(name))) for name in titles()}


def rules_index() -> str:
    """Return the page that lists the rules, by what they look at."""
    pages = {page.id: page for page in rule_pages()}
    return "\n".join(_rules_index(pages))


def changes_index() -> str:
    """Return the page that lists the changes."""
    return "\n".join(_changes_index())


def _needs(meta: RuleMeta) -> str:
    """Return what the recording must hold for a rule, "" if operators and device tasks are enough."""
    return ", ".join(meta.needs)


def _rule(page: RulePage, meta: RuleMeta) -> Iterator[str]:
    yield f"# {page.id}\n\n**{page.page.summary}**\n"
    in_charts = f", «{meta.legend.label}» in charts" if meta.legend.label else ""
    yield f'<p class="rule-kind">A rule about {KINDS[page.kind]}{in_charts}.</p>\n'
    for heading, text in page.page.sections:
        yield f"## {heading}\n\n{text}\n"
    if needs := _needs(meta):
        yield f"## What a recording must hold\n\n{needs[0].upper()}{needs[1:]}.\n"
    named = titles()
    for heading, ids in (("Changes", meta.changes), ("Also possible", meta.also)):
        if ids:
            yield f"## {heading}\n"
            yield from (f"- [{name}](../changes/{name}.md): {named[name]}" for name in ids)
            yield ""
    yield f"## In the terminal\n\n    diagnose explain {page.id}\n"


def _change(page: ChangePage) -> Iterator[str]:
    yield f"# {page.id}\n\n**{page.title}.**\n"
    for heading, text in page.page.sections:
        yield f"## {heading}\n\n{text}\n"
    rules = ", ".join(f"[{rule}](../rules/{rule}.md)" for rule in page.rules)
    fields = (
        ("Numbers", page.numbers),
        ("Trial", page.trial),
        ("Patch", page.patch),
        ("Remedy", _remedy(page.remedy)),
        ("Prescribed by", rules or "no rule; it is asked for by name"),
    )
    yield "## In short\n"
    yield from (f"- **{heading}**: {text}" for heading, text in fields if text)
    yield ""
    yield f"## In the terminal\n\n    diagnose explain {page.id}\n    diagnose what-if capture/ --apply {page.id}\n"


def _remedy(text: str) -> str:
    return f"[`{text}`](../remedies.md)" if text.startswith("diagnose.kernels") else text


def _rules_index(pages: Mapping[str, RulePage]) -> Iterator[str]:
    yield "# The rules\n"
    yield "Each rule finds one bottleneck. Reports and the JSON name it by its id.\n"
    for title, words, rules in GROUPS:
        yield f"## {title}\n\n{words}\n"
        rows = [(f"[{rule.META.id}](rules/{rule.META.id}.md)", pages[rule.META.id].page.summary) for rule in rules]
        yield from _table("| rule | what it sees |", rows)


def _changes_index() -> Iterator[str]:
    yield "# The changes\n"
    yield "`diagnose what-if --apply ID` predicts a change, `diagnose prove --apply ID` measures it.\n"
    rows = [(f"[{name}](changes/{name}.md)", f"{title}.") for name, title in titles().items()]
    yield from _table("| change | what it does |", rows)


def _table(heads: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"{heads}\n|---|---|"
    for left, right in rows:
        cell = right.replace("|", "\\|")
        yield f"| {left} | {cell} |"
    yield ""
