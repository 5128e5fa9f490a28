"""Traces scripts that have one planted waste about values each, and healthy ones, and scores the first finding.

A planted script is right where the first finding is of its kind; its line is right where that finding's first place is
one of the waste's lines. A healthy script is right where nothing answers. Prints a row for each script and the sums.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().with_name("planted")
TRACE_SECONDS = 600
STEPS = 400  # of a script: more than a recording takes
KINDS = {  # the rules that name each kind, besides one of the kind's own name
    "dead-work": (),
    "computed-again": ("recompute",),
    "constant-work": (),
    "independent-loop": ("launch-bound",),
    "recurrence": ("independent-loop",),
    "work-on-nothing": (),
    "too-wide": (),
    "host-round-trip": ("host-sync", "python-stall"),
    "unfused": ("unfused-attention", "unfused-elementwise"),
    "growing-work": ("growing-steps", "kept-graph"),
    "equal-rows": (),
    "wasted-sample": ("data-stall", "work-on-nothing"),
}


def traced(script: Path, keep: Path) -> dict[str, Any] | None:
    """Return the diagnosis of a script, from ``keep`` if it was traced before; None where tracing failed."""
    result = keep / f"{script.stem}.json"
    if not result.exists():
        command = [sys.executable, "-m", "diagnose", "trace", "-o", str(result), script.name]
        command += ["--steps", str(STEPS)] if '"--steps"' in script.read_text(encoding="utf-8") else []
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(script, folder)  # of a script in its working folder changes are diffs
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            try:
                run = subprocess.run(
                    command,
                    check=False,
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=TRACE_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return None
        if run.returncode or not result.exists():
            return None
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def scored(row: dict[str, Any], found: dict[str, Any]) -> tuple[bool, bool, str]:
    """Return whether the kind and the line are right, and the first finding in words."""
    first = next((f for f in found["findings"] if f["rule"] == found["dominant"]), None)
    if first is None:
        return not row["kind"], not row["kind"], "nothing"
    place = next(iter(first["where"]), {})
    said = f"{first['rule']} at {Path(place.get('file') or '').name}:{place.get('line')}"
    is_kind = bool(row["kind"]) and first["rule"] in (row["kind"], *KINDS[row["kind"]])
    return is_kind, is_kind and place.get("line") in row["lines"], said


def main() -> int:
    """Print the table; exit with 1 where a script could not be traced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts, without .py; all of them without a name")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="scripts and their truth.json")
    parser.add_argument("--keep", type=Path, help="folder of diagnoses, which are not made again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        keep = options.keep or Path(made)
        keep.mkdir(parents=True, exist_ok=True)
        sums = {True: [0, 0, 0], False: [0, 0, 0]}  # planted, healthy: scripts, kind right, line right
        failed = []
        for row in json.loads((options.folder / "truth.json").read_text()):
            name = row["name"].removesuffix(".py")
            if options.names and name not in options.names:
                continue
            found = traced(options.folder / f"{name}.py", keep)
            if found is None:
                failed.append(name)
                continue
            is_kind, is_line, said = scored(row, found)
            for i, each in enumerate((True, is_kind, is_line)):
                sums[bool(row["kind"])][i] += each
            marks = ("kind " if is_kind else "-    ") + ("line" if is_line else "-   ")
            print(f"{marks}  {name:14} {row['kind'] or 'healthy':17} {said}", flush=True)
    planted, healthy = sums[True], sums[False]
    print(f"planted {planted[0]}: kind first {planted[1]}, with its line {planted[2]}")
    print(f"healthy {healthy[0]}: without an answer {healthy[1]}")
    if failed:
        print(f"not traced: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
