"""Counts turns of phrase that readers stumble over, and long sentences, in README.md, in docs/ and in printed strings.

Printed are the strings of at least four words in a folder of the product, those that document code left out; each
folder is one page, whose sentences are not counted. Each page may have as many as
scripts/documentation/prose_exceptions.json lists, none if it is not listed. The list only shrinks: --shrink writes the
present counts of pages that have fewer. Code, tables, headings and link targets are left out of sentences; turns are
looked for in tables too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = Path(__file__).with_name("documentation") / "prose_exceptions.json"
PRODUCT = ("diagnose", "analyzers", "kernels", "reports")
MIN_STRING = 4  # words
MAX_WORDS = 25  # of one sentence
MAX_MEAN = 13.0  # words per sentence of a page
PLACE = r"(?<!line )(?<!lines )(?<!file )(?<!folder )(?<!place )(?<!show )(?<!shows )(?<!find )(?<!know )(?<!and )"
TURNS = {
    "where for if or when": rf"{PLACE}\bwhere\b(?! (?:to|(?:the|your) \w+ goes)\b)",
    "beside": r"\bbeside\b",
    "behind": r"\bbehind\b",
    "alone": r"\balone\b",
    "anew": r"\banew\b",
    "mended": r"\bmend(?:s|ed|ing)?\b",
    "of which": r"\bof which\b",
    "stands": r"\bstands?\b",
    "nobody": r"\b(?:nobody|somebody|whatever|nevertheless)\b",
    "in turns": r"\bin turns\b",
    "of its own": r"\bof (?:its|their|one's) own\b",
    "takes away": r"\btakes? (?:\w+ )?away\b",
    "leads to": r"\bleads? (?:\w+ )?to\b",
    "holds up": r"\bhold(?:s|ing)? (?:\w+ ){0,2}up\b",
    "is none": r"(?<!\bthere )\b(?:is|are) (?:none|no \w+)\b(?<!no longer)(?<!no more)",
    "as … has it": r"\bas (?:\w+ ){1,3}has (?:it|them)\b",
    "begin as a noun": r"\b(?:a|an|the|its|each|late) begins?\b",
    "a step for per step": r"\b(?:ms|µs|s|GB|MB|kB|bytes|times|calls|process) an? (?:step|rank|epoch|operator)\b",
    "code that speaks": r"\b(?:says|tells|knows|hears|speaks|minds|asks)\b",
}
# Code, SQL and lists of names within strings.
NOT_PROSE = re.compile(r"^(?=.*_)[a-z_ ]+$|torch\.where|is None\b|\b(?:SELECT|FROM|DELETE|UPDATE)\b[\s\S]*|\bWHERE\b")
CODE = re.compile(r"^```.*\n[\s\S]*?^```$|^(?: {4}|\t|:::).*$|<!--[\s\S]*?-->|`[^`\n]+`", re.MULTILINE)
SPOKEN = re.compile("|".join(f"(?P<t{i}>{pattern})" for i, pattern in enumerate(TURNS.values())), re.IGNORECASE)


@dataclass(frozen=True)
class Counts:
    """What a page has: words of its prose, sentences, turns by their names, and its sentences above the limit."""

    words: int
    sentences: int
    turns: Counter[str]
    long: list[str]

    @property
    def mean(self) -> float:
        """Return the words per sentence."""
        return self.words / max(self.sentences, 1)

    @property
    def faults(self) -> dict[str, int]:
        """Return what exceptions are made of, those that are not zero."""
        counted = {"turns": self.turns.total(), "long": len(self.long)}
        counted["mean"] = int(-(-self.mean // 1)) if self.mean > MAX_MEAN else 0
        return {name: number for name, number in counted.items() if number}


def main() -> int:
    """Print the counts of all pages and what exceeds the exceptions; return 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="lower the exceptions to what is there")
    parser.add_argument("--list", action="store_true", help="print every turn and every long sentence")
    options = parser.parse_args()
    pages = {path.relative_to(ROOT).as_posix(): count(path.read_text(encoding="utf-8")) for path in pages_of(ROOT)}
    docs = list(pages.values())
    pages |= {f"strings of {folder}": count_strings(ROOT / folder) for folder in PRODUCT}
    allowed: dict[str, dict[str, int]] = json.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    if options.list:
        for name, page in pages.items():
            print(f"{name}: mean {page.mean:.1f}, {dict(page.turns)}", *page.long, sep="\n  ")
    if options.shrink:
        kept = {name: lowered(allowed.get(name, {}), page.faults) for name, page in pages.items()}
        text = json.dumps({name: faults for name, faults in kept.items() if faults}, indent=1)
        EXCEPTIONS.write_text(f"{text}\n", encoding="utf-8")
    found = [line for name, page in pages.items() for line in exceeding(name, page, allowed.get(name, {}))]
    print("\n".join([*found, summary(docs), strings_summary([pages[f"strings of {folder}"] for folder in PRODUCT])]))
    return bool(found)


def pages_of(root: Path) -> list[Path]:
    """Return the English pages."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def count(markdown: str) -> Counts:
    """Count the turns and the sentences of a page."""
    shown = CODE.sub(" code ", markdown)
    shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", shown)
    spoken = list(sentences(shown))
    return Counts(
        words=sum(len(one.split()) for one in spoken),
        sentences=len(spoken),
        turns=turns_in(shown),
        long=[one for one in spoken if len(one.split()) > MAX_WORDS],
    )


def turns_in(shown: str) -> Counter[str]:
    """Count the turns of a text without code."""
    return Counter(list(TURNS)[int((match.lastgroup or "t0")[1:])] for match in SPOKEN.finditer(shown))


def count_strings(folder: Path) -> Counts:
    """Count the turns of the strings in a folder's modules."""
    words, turns = 0, Counter[str]()
    for path in sorted(folder.rglob("*.py")):
        if any(each.is_symlink() for each in path.parents):
            continue
        for string in strings(ast.parse(path.read_text(encoding="utf-8"))):
            words += _num_words(string)
            turns += turns_in(CODE.sub(" code ", NOT_PROSE.sub("", string)))
    return Counts(words, words, turns, [])


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield strings of at least some words; an expression that is a string documents what is above it."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documents)
    yield from (
        node.value for node in constants if isinstance(node.value, str) and _num_words(node.value) >= MIN_STRING
    )


def _num_words(text: str) -> int:
    return len(text.split())


def sentences(shown: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and list items."""
    prose = re.sub(r"^(?:#.*|\|.*|---.*| *code *)$", "", shown, flags=re.M)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose, flags=re.M):
        for one in re.split(r"(?<=[.!?])[*)\"”]*\s+", " ".join(block.split())):
            if re.search(r"\w", one):
                yield one


def exceeding(name: str, page: Counts, allowed: dict[str, int]) -> Iterator[str]:
    """Yield a line for each count above the page's exception."""
    for kind, number in page.faults.items():
        if number > allowed.get(kind, 0):
            shown = {"turns": dict(page.turns), "long": page.long, "mean": f"{page.mean:.1f} words per sentence"}[kind]
            yield f"{name}: {kind} {number}, at most {allowed.get(kind, 0)}: {shown}"


def lowered(allowed: dict[str, int], faults: dict[str, int]) -> dict[str, int]:
    """Return exceptions that are no higher than before and no higher than needed."""
    return {kind: min(number, faults[kind]) for kind, number in allowed.items() if kind in faults}


def summary(pages: list[Counts]) -> str:
    """Return the counts of all pages in one line."""
    words, turns = sum(page.words for page in pages), sum(page.turns.total() for page in pages)
    mean, long = words / max(sum(page.sentences for page in pages), 1), sum(len(page.long) for page in pages)
    shares = f"{1e4 * turns / max(words, 1):.1f} turns per 10,000 words, {mean:.1f} words per sentence"
    return f"prose: {len(pages)} pages, {words} words in sentences, {shares}, {long} above {MAX_WORDS} words"


def strings_summary(folders: list[Counts]) -> str:
    """Return the counts of all strings in one line."""
    words, turns = sum(each.words for each in folders), sum(each.turns.total() for each in folders)
    return f"strings: {words} words, {1e4 * turns / max(words, 1):.1f} turns per 10,000 words"


if __name__ == "__main__":
    sys.exit(main())
