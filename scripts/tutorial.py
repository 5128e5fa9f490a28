"""Runs the commands of docs/tutorial.md and docs/zh/tutorial.md in fresh folders, and checks what they print.

Figures differ from run to run, so what has to be found again is named in scripts/documentation/tutorial.md.in (in
Chinese: tutorial.zh.md.in): each of its blocks ``run`` has a command, texts that its output must hold (``expect:``;
``measured:`` where a page is written, since a busy machine may leave undecided what is measured), and from where until
where it is shown.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "scripts" / "documentation"
SCRIPT = ROOT / "docs" / "tutorial" / "train.py"
BLOCK = re.compile(r"^```run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```console\n\$ .*?^```$", re.MULTILINE | re.DOTALL)
MAX_SECONDS = 900  # of one command; a proof has a budget of its own


@dataclass(frozen=True)
class Command:
    """One block: the command, texts that it must print, and the lines at which what is shown begins and ends."""

    line: str
    expected: tuple[str, ...]
    measured: tuple[str, ...] = ()  # expected where the machine is quiet enough to decide
    first: str = ""
    end: str = ""

    def shown(self, output: str) -> str:
        """Return the part of an output that the page has."""
        lines = output.rstrip().split("\n")
        start = next((i for i, text in enumerate(lines) if text.startswith(self.first)), 0)
        ends = (i for i, text in enumerate(lines) if i > start and self.end and text.startswith(self.end))
        end = next(ends, len(lines))
        middle = "\n".join(lines[start:end]).rstrip()
        return ("…\n" if start else "") + middle + ("\n…" if end < len(lines) else "")

    def missing(self, output: str, *, is_quiet: bool = False) -> list[str]:
        """Return the expected texts that an output lacks; how its lines are wrapped does not count."""
        plain, expected = " ".join(output.split()), self.expected + (self.measured if is_quiet else ())
        return [text for text in expected if " ".join(text.split()) not in plain]


@dataclass(frozen=True)
class Edition:
    """The tutorial in one language: the text that it is made of, and the page."""

    lang: str
    text: Path
    page: Path

    @property
    def head(self) -> str:
        """Return the first line of the page."""
        return f"<!-- Made by scripts/tutorial --write from {self.text.relative_to(ROOT)} -->\n"


EDITIONS = {
    "en": Edition("en", TEXTS / "tutorial.md.in", ROOT / "docs" / "tutorial.md"),
    "zh": Edition("zh", TEXTS / "tutorial.zh.md.in", ROOT / "docs" / "zh" / "tutorial.md"),
}


def main() -> int:
    """Run and check, write, or only compare the page with its text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the pages of what the commands print")
    parser.add_argument("--check", action="store_true", help="run nothing: compare the pages with their texts")
    parser.add_argument("--lang", choices=EDITIONS, help="this page only")
    options = parser.parse_args()
    faults: list[str] = []
    for edition in [EDITIONS[options.lang]] if options.lang else EDITIONS.values():
        faults += page_faults(edition) if options.check else run(edition, write=options.write)
    print("\n".join(faults) if faults else "tutorial: everything is as the pages state it")
    return bool(faults)


def commands(edition: Edition) -> list[Command]:
    """Return the commands of the text."""
    return [_command(block) for block in BLOCK.findall(_text(edition))]


def page_faults(edition: Edition) -> Iterator[str]:
    """Yield what the page lacks of its text: prose, commands, and what each has to print."""
    page, name = edition.page.read_text(encoding="utf-8"), edition.page.relative_to(ROOT)
    if SHOWN.sub("@", page) != edition.head + BLOCK.sub("@", _text(edition)):
        yield f"{name} is out of date; run scripts/tutorial --write"
    for command, block in zip(commands(edition), SHOWN.findall(page), strict=False):
        if not block.startswith(f"```console\n$ {command.line}\n"):
            yield f"{name} has another command than {command.line}"


def run(edition: Edition, *, write: bool) -> Iterator[str]:
    """Run all commands in a fresh folder; yield what they do not print."""
    outputs: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        shutil.copy(SCRIPT, Path(folder, "train.py"))
        for command in commands(edition):
            outputs.append(_output(command.line, folder, edition.lang))
            missing = command.missing(outputs[-1], is_quiet=write)
            if missing:
                yield f"$ {command.line}\n{outputs[-1]}\nwhich lacks: {'; '.join(missing)}"
    if write:
        blocks = iter(zip(commands(edition), outputs, strict=True))
        edition.page.write_text(edition.head + BLOCK.sub(_show(blocks), _text(edition)), encoding="utf-8")


def _show(blocks: Iterator[tuple[Command, str]]) -> Callable[[re.Match[str]], str]:
    def block(_: re.Match[str]) -> str:
        command, output = next(blocks)
        return f"```console\n$ {command.line}\n{command.shown(output)}\n```"

    return block


def _output(line: str, folder: str, lang: str) -> str:
    """Return what a command prints, without colours, as a reader in that folder sees it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DIAGNOSE", "PYTEST", "GIT_"))}
    environment = kept | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "GIT_CEILING_DIRECTORIES": folder}
    environment["DIAGNOSE_LANG"] = lang
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )
    return done.stdout.replace(f"{folder}/", "")


def _text(edition: Edition) -> str:
    script = SCRIPT.read_text(encoding="utf-8").rstrip()
    return edition.text.read_text(encoding="utf-8").replace("```file\ntrain.py\n```", f"```python\n{script}\n```")


def _command(block: str) -> Command:
    line, *rest = block.strip().split("\n")
    pairs = [text.split(": ", 1) for text in rest]
    named = dict(pair for pair in pairs if pair[0] in ("from", "until"))
    expected = tuple(text for name, text in pairs if name == "expect")
    measured = tuple(text for name, text in pairs if name == "measured")
    return Command(line, expected, measured, named.get("from", ""), named.get("until", ""))


if __name__ == "__main__":
    sys.exit(main())
