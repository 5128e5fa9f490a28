"""The install lines that the program and its documentation print, as they are typed into a shell."""

import ast
import inspect
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRINT = ("*.md", "docs", "diagnose", "reports", "analyzers", "kernels", "scripts")
HISTORY = "CHANGELOG.md"
TOOL = re.compile(r"\b(?:pip|uv|uvx|pipx)\s")
START = r"(?<!Do not run `)\b(?:pip (?:un)?install|uvx|uv pip|pipx run)\b"
WORD = r"(?:'[^']+'|-{1,2}[\w-]+|[\w{][\w{}.-]*[\w}]|\.)(?=[\s.,;:)`\"]|$)"
LINE = re.compile(rf"{START}((?: {WORD})+)")


def printed_lines() -> dict[str, list[str]]:
    """Return each line with the files that print it; a placeholder is filled with every value that it gets."""
    lines: dict[str, list[str]] = defaultdict(list)
    names = subprocess.run(["git", "ls-files", "-z", *PRINT], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in names.stdout.split("\0"):
        if name and name != HISTORY and not (ROOT / name).is_symlink():
            for line in _lines_of(name):
                lines[line].append(name)
    return lines


def _lines_of(name: str) -> Iterator[str]:
    try:
        text = (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if text.startswith("#!/bin/sh") or not TOOL.search(text):
        return  # a shell script runs what it names
    for unit in _strings(text) if name.endswith(".py") else _paragraphs(text):
        words = " ".join(unit.split())
        found = [match[0] for match in LINE.finditer(words)]
        started = len(re.findall(START, words))
        assert len(found) == started, f"{name}: an install line ends where no shell would end it: {words}"
        for line in found:
            yield from _filled(line)


def _filled(line: str) -> list[str]:
    if "{extra}" in line:
        return [line.replace("{extra}", extra) for extra in sorted(_extras_of_errors())]
    if "{chosen}" in line:
        return [line.replace("{chosen}", name) for name in ("bitsandbytes", "torchao")]
    assert "{" not in line, f"{line} has a placeholder whose values are not known"
    return [line]


def _extras_of_errors() -> set[str]:
    """Return the extras that errors ask for."""
    extras = set()
    for folder in ("diagnose", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "missing_extra(" in text:
                calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
                extras |= {
                    ast.literal_eval(call.args[1]) for call in calls if getattr(call.func, "id", "") == "missing_extra"
                }
    return extras


def _strings(source: str) -> Iterator[str]:
    """Yield the strings of Python code, those of several parts in one, with ``{name}`` for what is filled in."""
    tree = ast.parse(source)
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield from _paragraphs(inspect.cleandoc(node.value))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a page; of code each line."""
    prose, fenced = "", False
    for line in [*text.splitlines(), ""]:
        fenced ^= line.startswith("```")
        if line.strip() and not fenced and not line.startswith("    "):
            prose += f" {line}"
            continue
        yield prose
        yield line
        prose = ""
