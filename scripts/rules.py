"""Writes docs/rules.md and docs/changes.md from the files of both, and two lists of the modules of diagnose.kernels.

One is in docs/remedies.md, the other one, a table with what was measured, in evaluation/pages/remedies.md.

With --check it only compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from diagnose import analyzers
from diagnose.analyzers import Analyzer
from diagnose.changes import CHANGES, trial_method
from diagnose.changes.common.change import Change
from diagnose.cli.explain import titles
from diagnose.text.pages import parse_page

sys.path.append(str(Path(__file__).resolve().parents[1] / "evaluation"))
from remedy_figures import FIGURES
from remedy_inventory import provable, public_modules

ROOT = Path(__file__).resolve().parents[1]
GROUPS: tuple[tuple[str, str, Sequence[Analyzer]], ...] = (
    (
        "What leaves the device idle",
        "Every idle nanosecond has one of these causes. The rules run in this order. Without a GPU, those that apply "
        "divide the time of the training thread.",
        (*analyzers.IDLE_RULES, analyzers.FALLBACK_RULE),
    ),
    (
        "What a busy device wastes",
        "Each piece of busy time counts for one rule, the first that names it.",
        analyzers.KERNEL_RULES,
    ),
    (
        "What the machine and its memory are like",
        "These are also listed if they cost no time by themselves.",
        analyzers.STATE_RULES,
    ),
    (
        "What only the whole run shows",
        "A capture times every step of the run. These rules compare them and spread their cost over all steps.",
        analyzers.RUN_RULES,
    ),
    ("What only several ranks show", "These need the traces of all ranks.", analyzers.RANK_RULES),
)
HEAD = """# The rules

Made by `scripts/rules` from [analyzers](../analyzers), one file per rule. Reports and the JSON name a rule by its id.
`diagnose explain ID` prints its page. The threshold is the smallest cost that is reported. *How sure* is about the
cause, and left out if it is high.
"""


CHANGES_HEAD = """# The changes

Made by `scripts/rules` from [diagnose/changes](../diagnose/changes), one file per change. `diagnose explain ID` prints
one. `diagnose what-if --apply ID` predicts its saving, `diagnose prove --apply ID` measures it and compares the losses.

*Applied by* `prove` means: in a trial, without an edit of your script. `diff` means: diagnose can write it into the
script. Without *Numbers* they stay the same. {provable} of {changes} changes can be tried. [Advice](#advice) is what
only you can do.
"""
ADVICE_HEAD = """## Advice

Code to paste. `diagnose explain ID` prints what to watch.
"""


MODULES_BEGIN, MODULES_END = "<!-- modules: made by scripts/rules -->", "<!-- end of modules -->"


def main() -> int:
    """Write the pages, or compare them."""
    status = 0
    pages = {
        "docs/rules.md": _rules_page(),
        "docs/changes.md": _changes_page(),
        "docs/remedies.md": _with_modules("docs/remedies.md", _remedies()),
        "evaluation/pages/remedies.md": _with_modules("evaluation/pages/remedies.md", _measured()),
    }
    for name, lines in pages.items():
        path, page = ROOT / name, "\n".join(lines)
        if "--check" not in sys.argv[1:]:
            path.write_text(page, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != page:
            print(f"rules: {name} is out of date; run scripts/rules.", file=sys.stderr)
            status = 1
    return status


def _rules_page() -> Iterator[str]:
    yield HEAD
    for title, words, rules in GROUPS:
        yield f"## {title}\n\n{words}\n"
        for rule in rules:
            yield from _page_of(f"diagnose.analyzers.{rule.META.id.replace('-', '_')}", rule.META.id)
            if rule.META.changes:
                links = ", ".join(f"[{name}](changes.md#{name})" for name in rule.META.changes)
                yield f"- **Changes**: {links}"
            if rule.META.also:
                links = ", ".join(f"[{name}](changes.md#{name})" for name in rule.META.also)
                yield f"- **Also possible**: {links}"
            yield ""


def _changes_page() -> Iterator[str]:
    yield CHANGES_HEAD.format(changes=len(CHANGES), provable=len(provable()))
    for name, change in CHANGES.items():
        page = parse_page(CHANGES.page(name))
        does, watch = (text for _, text in page.sections)
        yield f"### {name}\n\n{page.summary} {does}\n"
        numbers = _numbers(change)
        parts = [f"**Watch**: {watch}", f"**Numbers**: {numbers}.", " ".join(_made(change))]
        yield from (f"- {part}" for part in parts if part != "**Numbers**: same.")
        yield ""
    yield ADVICE_HEAD
    for name, title in titles().items():
        if name not in CHANGES:
            rules = ", ".join(
                f"[{m.id}](rules.md#{m.id})" for m in analyzers.META.values() if name in (*m.changes, *m.also)
            )
            yield f'- <a id="{name}"></a>`{name}` ({rules}): {title}.'
    yield ""


def _with_modules(name: str, modules: Iterator[str]) -> Iterator[str]:
    """Yield a page as it is, but for the modules between its marks."""
    before, _, rest = (ROOT / name).read_text(encoding="utf-8").partition(MODULES_BEGIN)
    yield f"{before}{MODULES_BEGIN}\n"
    yield from modules
    yield f"\n{MODULES_END}{rest.partition(MODULES_END)[2]}"


def _remedies() -> Iterator[str]:
    for m in public_modules():
        if m.name.startswith("ops."):
            continue  # the page has a table of the operators
        summary = (import_module(f"diagnose.kernels.{m.name}").__doc__ or "").partition("\n\n")[0]
        yield f"- `{m.name}`: {' '.join(summary.split())}"


def _measured() -> Iterator[str]:
    yield "| module | prescribed by | in a trial | on a CPU | script | on a GPU |\n|---|---|---|---|---|---|"
    for m in public_modules():
        links = ", ".join(f"[{name}](../../docs/changes.md#{name})" for name in m.changes)
        methods = ", ".join(dict.fromkeys(m.methods)) or "–"
        figures = FIGURES[m.name]
        script = f"`{figures.script}`" if figures.script else "–"
        by = links or f"no trace: {m.building_block}"
        yield f"| `{m.name}` | {by} | {methods} | {figures.cpu} | {script} | {figures.gpu} |"


def _numbers(change: Change) -> str:
    return change.numerics.safety.removeprefix("may change the numbers: ").replace("same numbers", "same", 1)


def _made(change: Change) -> Iterator[str]:
    """Yield how a change is made, for which rules, and by which modules."""
    tried = "" if trial_method(change.id) == "by hand" else "`prove`"
    needs = " (needs a GPU)" if change.patch is not None and change.patch.needs_gpu else ""
    written = "diff" if change.edit or change.edits_expressions else ""
    yield f"**Applied by**: {', '.join(filter(None, (f'{tried}{needs}', written))) or 'hand'}."
    rules = [meta.id for meta in analyzers.META.values() if change.id in (*meta.changes, *meta.also)]
    yield f"**Rules**: {', '.join(f'[{rule}](rules.md#{rule})' for rule in rules) or 'none, use `--apply`'}."
    modules = ", ".join(f"`{module}`" for module in (change.remedy, *change.modules) if module)
    if modules:
        yield f"**Remedy**: {modules}."


def _page_of(module: str, name: str) -> Iterator[str]:
    """Yield the heading and the sections of the docstring of a rule or a change."""
    page = parse_page(import_module(module).__doc__ or "")
    yield f"### {name}\n\n{page.summary}\n"
    sections = (each for each in page.sections if each != ("How sure", "High."))
    yield from (f"- **{heading}**: {text}" for heading, text in sections)


if __name__ == "__main__":
    sys.exit(main())
