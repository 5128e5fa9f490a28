"""Sums what tests took, by folder and by file, from pytest's JUnit file: wall and CPU time, with their processes."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

Sums = dict[str, list[float]]  # name → tests, wall s, CPU s


def summed(results: Path) -> tuple[Sums, Sums]:
    """Return the sums by folder below tests, and by file."""
    folders: Sums = defaultdict(lambda: [0, 0.0, 0.0])
    files: Sums = defaultdict(lambda: [0, 0.0, 0.0])
    for case in ElementTree.parse(results).iter("testcase"):
        parts = [part for part in case.get("classname", "").split(".") if not part[:1].isupper()]
        cpu = next((float(p.get("value", 0)) for p in case.iter("property") if p.get("name") == "cpu_s"), 0.0)
        folder = "/".join(parts[:-1][:2]) or "tests"
        for sums, name in ((folders, folder), (files, "/".join(parts) + ".py")):
            for i, value in enumerate((1, float(case.get("time", 0)), cpu)):
                sums[name][i] += value
    return folders, files


def table(sums: Mapping[str, list[float]], num: int) -> str:
    """Return the dearest rows as a table of Markdown, with the sum of all."""
    rows = sorted(sums.items(), key=lambda row: -row[1][2])
    total = [sum(values[i] for values in sums.values()) for i in range(3)]
    lines = [f"| {name} | {n:.0f} | {wall:.0f} | {cpu:.0f} |" for name, (n, wall, cpu) in [*rows[:num], ("all", total)]]
    return "\n".join(["| | tests | wall, s | CPU, s |", "|---|---|---|---|", *lines])


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="what pytest --junitxml wrote")
    parser.add_argument("--files", type=int, default=30, metavar="N", help="so many files (default: 30)")
    asked = parser.parse_args()
    folders, files = summed(asked.results)
    print(table(folders, len(folders)), table(files, asked.files), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
