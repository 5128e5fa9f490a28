"""Sums what tests took, by folder and by file, from pytest's JUnit file: wall and CPU time, with their processes.

With the schedule of several processes, replayed: how long it is, and how long processes idle at its end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.scheduling import DURATIONS, idle_s, sorted_units, unit_of

MIN_KEPT_S = 1.0  # files that take less are last in any order
Sums = dict[str, list[float]]  # name → tests, wall s, CPU s


def summed(results: Path) -> tuple[Sums, Sums]:
    """Return the sums by folder below tests, and by file."""
    folders: Sums = defaultdict(lambda: [0, 0.0, 0.0])
    files: Sums = defaultdict(lambda: [0, 0.0, 0.0])
    for case in ElementTree.parse(results).iter("testcase"):
        parts = _parts(case)
        cpu = next((float(p.get("value", 0)) for p in case.iter("property") if p.get("name") == "cpu_s"), 0.0)
        folder = "/".join(parts[:-1][:2]) or "tests"
        for sums, name in ((folders, folder), (files, "/".join(parts) + ".py")):
            for i, value in enumerate((1, float(case.get("time", 0)), cpu)):
                sums[name][i] += value
    return folders, files


def schedule(results: Path, num_processes: int) -> tuple[float, float]:
    """Return how long so many processes take for the tests, and how long they idle at the end, s."""
    units: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(results).iter("testcase"):
        units[unit_of("/".join(_parts(case)[1:]) + ".py")].append(float(case.get("time", 0)))
    return idle_s([units[unit] for unit in sorted_units(units)], num_processes)


def _parts(case: ElementTree.Element) -> list[str]:
    return [part for part in case.get("classname", "").split(".") if not part[:1].isupper()]


def table(sums: Mapping[str, list[float]], num: int) -> str:
    """Return the dearest rows as a table of Markdown, with the sum of all."""
    rows = sorted(sums.items(), key=lambda row: -row[1][2])
    total = [sum(values[i] for values in sums.values()) for i in range(3)]
    lines = [f"| {name} | {n:.0f} | {wall:.0f} | {cpu:.0f} |" for name, (n, wall, cpu) in [*rows[:num], ("all", total)]]
    return "\n".join(["| | tests | wall, s | CPU, s |", "|---|---|---|---|", *lines])


def main() -> int:
    """Print both tables and the schedule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="what pytest --junitxml wrote")
    parser.add_argument("--files", type=int, default=30, metavar="N", help="so many files (default: 30)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of the schedule (default: 2)")
    parser.add_argument("--write", action="store_true", help="keep what files took in tests/durations.json")
    asked = parser.parse_args()
    folders, files = summed(asked.results)
    if asked.write:
        took = {name.removeprefix("tests/"): round(wall) for name, (_, wall, _) in files.items() if wall >= MIN_KEPT_S}
        DURATIONS.write_text(json.dumps(took, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(table(folders, len(folders)), table(files, asked.files), sep="\n\n")
    took_s, idle = schedule(asked.results, asked.processes)
    print(f"\n{asked.processes} processes: {took_s:.0f} s of tests; they idle for {idle:.1f} s at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
