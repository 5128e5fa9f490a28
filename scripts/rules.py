"""Writes docs/rules.md and docs/changes.md from the files of both, and the modules of docs/remedies.md.

With --check it only compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from diagnose import analyzers
from diagnose.analyzers import Analyzer
from diagnose.changes import CHANGES, trial_words
from diagnose.changes.common.change import Change
from diagnose.changes.common.inventory import provable, public_modules
from diagnose.cli.explain import titles
from diagnose.text.pages import parse_page

sys.path.append(str(Path(__file__).resolve().parents[1] / "evaluation"))
from remedy_figures import FIGURES

ROOT = Path(__file__).resolve().parents[1]
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
    (
        "What only the whole run shows",
        "A capture times every step of the run; these compare them. Their cost is spread over all steps.",
        analyzers.RUN_RULES,
    ),
    ("What only several ranks show", "These need the traces of all ranks.", analyzers.RANK_RULES),
)
HEAD = """# The rules

Made by `scripts/rules` from the files in [analyzers](../analyzers), one a rule. A rule's id stands in reports, in the
JSON and in the first lines of the bundled scripts.
"""


CHANGES_HEAD = """# The changes

Made by `scripts/rules` from the files in [diagnose/changes](../diagnose/changes), one a change. A change's id stands in
prescriptions, in `diagnose what-if --apply` and in `diagnose prove --apply`. Safety: what happens to the numbers, which
a trial checks. What rules advise beyond, text that nothing applies, stands [below](#advice).
"""
ADVICE_HEAD = """## Advice

Text of a rule, with code to paste, for what no edit, argument or module does by itself. Its id stands in prescriptions
like that of a change; `diagnose explain ID` has more of it.
"""


MODULES_HEAD = """## Modules and their changes

Of {changes} changes {provable} can be made by `diagnose prove`: by a patch of the running process, or in the text of
the script that a trial runs, whose file stays as it is. Rules give {advised} further pieces of advice. Of {modules}
public modules of `diagnose.kernels` {handed} are handed over by a change or by advice.
"""


REMEDIES_BEGIN, REMEDIES_END = "<!-- modules: made by scripts/rules -->", "<!-- end of modules -->"


def main() -> int:
    """Write the pages, or compare them."""
    status = 0
    pages = (("rules", _rules_page()), ("changes", _changes_page()), ("remedies", _remedies_page()))
    for name, lines in pages:
        path, page = ROOT / "docs" / f"{name}.md", "\n".join(lines)
        if "--check" not in sys.argv[1:]:
            path.write_text(page, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != page:
            print(f"rules: docs/{name}.md is out of date; run scripts/rules.", file=sys.stderr)
            status = 1
    return status


def _rules_page() -> Iterator[str]:
    yield HEAD
    for title, words, rules in GROUPS:
        yield f"## {title}\n\n{words}\n"
        for rule in rules:
            yield from (f'<a id="{old}"></a>\n' for old, new in analyzers.FORMER.items() if new == rule.META.id)
            yield from _page_of(f"diagnose.analyzers.{rule.META.id.replace('-', '_')}", rule.META.id)
            if rule.META.changes:
                links = ", ".join(f"[{name}](changes.md#{name})" for name in rule.META.changes)
                yield f"- **Changes**: {links}"
            if rule.META.also:
                links = ", ".join(f"[{name}](changes.md#{name})" for name in rule.META.also)
                yield f"- **Also possible**: {links}"
            yield ""


def _changes_page() -> Iterator[str]:
    yield CHANGES_HEAD
    for name, change in CHANGES.items():
        yield from _page_of(f"diagnose.changes.{name.replace('-', '_')}", name)
        yield from (f"- **{heading}**: {text}" for heading, text in _properties(change))
        yield ""
    yield ADVICE_HEAD
    for name, title in titles().items():
        if name not in CHANGES:
            rules = ", ".join(
                f"[{m.id}](rules.md#{m.id})" for m in analyzers.META.values() if name in (*m.changes, *m.also)
            )
            yield f'- <a id="{name}"></a>`{name}` ({rules}): {title}.'
    yield ""
    yield from modules_section()


def modules_section() -> Iterator[str]:
    """Yield which change hands over each module, and how that is proved."""
    modules = public_modules()
    handed = [m for m in modules if m.changes]
    advised = sum(name not in CHANGES for name in titles())
    yield MODULES_HEAD.format(
        changes=len(CHANGES), advised=advised, provable=len(provable()), modules=len(modules), handed=len(handed)
    )
    yield "| module | changes | rules | in a trial |\n|---|---|---|---|"
    for m in handed:
        links = ", ".join(f"[{name}](#{name})" for name in m.changes)
        rules = ", ".join(f"[{name}](rules.md#{name})" for name in m.rules)
        yield f"| `{m.name}` | {links} | {rules} | {', '.join(dict.fromkeys(m.methods))} |"
    yield "\nNo trace asks for these:\n"
    yield from (f"- `{m.name}`: {m.building_block}." for m in modules if m.building_block)
    yield ""


def _remedies_page() -> Iterator[str]:
    """Yield docs/remedies.md as it is, with its table of modules made anew."""
    page = (ROOT / "docs" / "remedies.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(REMEDIES_BEGIN)
    yield f"{before}{REMEDIES_BEGIN}\n"
    yield "| module | prescribed by | in a trial | on a CPU | script | on a GPU |\n|---|---|---|---|---|---|"
    for m in public_modules():
        links = ", ".join(f"[{name}](changes.md#{name})" for name in m.changes) or f"no trace: {m.building_block}"
        methods = ", ".join(dict.fromkeys(m.methods)) or "–"
        figures = FIGURES[m.name]
        script = f"`{figures.script}`" if figures.script else "–"
        yield f"| `{m.name}` | {links} | {methods} | {figures.cpu} | {script} | {figures.gpu} |"
    yield f"\n{REMEDIES_END}{rest.partition(REMEDIES_END)[2]}"


def _properties(change: Change) -> Iterator[tuple[str, str]]:
    yield "Safety", f"{change.numerics.safety}."
    yield "In a trial", trial_words(change.id)
    yield "In a diff of the script", "written." if change.edit or change.edits_expressions else "not written."
    rules = [rule.META.id for rule in analyzers.RULES if change.id in rule.META.changes]
    also = [rule.META.id for rule in analyzers.RULES if change.id in rule.META.also]
    links = [f"[{rule}](rules.md#{rule})" for rule in rules] + [f"[{rule}](rules.md#{rule}) also" for rule in also]
    yield "Prescribed by", ", ".join(links) or "no rule"
    modules = ", ".join(f"`{module}`" for module in (change.remedy, *change.modules) if module)
    if modules:
        yield "Remedy", modules


def _page_of(module: str, name: str) -> Iterator[str]:
    """Yield the heading and the sections of the docstring of a rule or a change."""
    page = parse_page(import_module(module).__doc__ or "")
    yield f"### {name}\n\n{page.summary}\n"
    yield from (f"- **{heading}**: {text}" for heading, text in page.sections)


if __name__ == "__main__":
    sys.exit(main())
