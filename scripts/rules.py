"""Writes docs/rules.md from the docstrings of analyzers/; with --check it only says whether the page is current."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnose import analyzers
from diagnose.analyzers import Analyzer
from diagnose.text.pages import parse_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "rules.md"
GROUPS: tuple[tuple[str, str, Sequence[Analyzer]], ...] = (
    (
        "What leaves the device idle",
        "Every idle nanosecond has one of these causes. They are asked in this order; without a device those that fit "
        "divide the training thread's time instead.",
        (*analyzers.IDLE_RULES, analyzers.FALLBACK_RULE),
    ),
    (
        "What a busy device wastes",
        "Each piece of busy time counts for one rule, the first that names it.",
        analyzers.KERNEL_RULES,
    ),
    (
        "What the machine and its memory are like",
        "Named also where they cost no time by themselves.",
        analyzers.STATE_RULES,
    ),
    ("What only several ranks show", "These need the traces of all ranks.", analyzers.RANK_RULES),
)
HEAD = """# The rules

Made by `scripts/rules` from the files in [analyzers](../analyzers), one a rule. A rule's id stands in reports, in the
JSON and in the first lines of the bundled scripts.
"""


def main() -> int:
    """Write the page, or compare it."""
    page = "\n".join(_page())
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("rules: docs/rules.md is out of date; run scripts/rules.", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _page() -> Iterator[str]:
    yield HEAD
    for title, words, rules in GROUPS:
        yield f"## {title}\n\n{words}\n"
        for rule in rules:
            page = parse_page(sys.modules[f"diagnose.analyzers.{rule.META.id.replace('-', '_')}"].__doc__ or "")
            yield f"### {rule.META.id}\n\n{page.summary}\n"
            yield from (f"- **{heading}**: {text}" for heading, text in page.sections)
            yield ""


if __name__ == "__main__":
    sys.exit(main())
