"""Checks of the tree that no linter makes: sizes of files, links in the documentation, shell syntax."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 450_000  # nothing in the repository is a data dump; recorded traces stay under 400 kB
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")


def tracked() -> list[Path]:
    """Return the files that git knows, links left out."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def too_large(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each file that is a data dump."""
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            yield f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes; at most {MAX_BYTES}"


def broken_links(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each relative link of a Markdown file that leads nowhere."""
    for path in paths:
        if path.suffix != ".md":
            continue
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if not (path.parent / target).exists():
                yield f"{path.relative_to(ROOT)}: link to {target}, which is not there"


def shell_errors(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each shell script that a POSIX shell cannot parse."""
    for path in paths:
        with path.open("rb") as file:
            first = file.readline(32)
        if not first.startswith(b"#!/bin/sh"):
            continue
        done = subprocess.run(["sh", "-n", str(path)], check=False, capture_output=True, text=True)
        if done.returncode:
            yield f"{path.relative_to(ROOT)}: {done.stderr.strip()}"


def main() -> int:
    """Print what is wrong; return 1 where anything is."""
    paths = tracked()
    found = [*too_large(paths), *broken_links(paths), *shell_errors(paths)]
    print("\n".join(found) if found else f"{len(paths)} files: sizes, links and scripts are in order")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
