"""Traces training scripts of authors who knew no tool, and prints what is answered beside the truth they fixed first.

    scripts/python evaluation/blind.py [--keep FOLDER] [--judged] [NAME …]

`blind/truth.json` has for each script the set it came with, the cause in its author's words, the lines, the repair,
what else is fine, what harms, and the share of the step that the repair saved (CPU time, one thread). `first_answer` is
how a reader who had seen neither code nor rules judged the answer of the one run before anything was corrected with it:
`--judged` prints the sums of these. A set is development data from then on, so what this script finds is no score.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from planted_wastes import traced

FOLDER = Path(__file__).resolve().with_name("blind")


def row(case: dict[str, Any], found: dict[str, Any]) -> str:
    """Return one line of the table: whether the first place is one of the waste's lines, or nothing was found."""
    first = next((each for each in found["findings"] if each["rule"] == found["dominant"]), None)
    place = next(iter(first["where"]), {}) if first is not None else {}
    card = next((each for each in found["prescriptions"] if first is not None and each["rule"] == first["rule"]), None)
    share = 100 * (first["worth_ms"] if first is not None else 0) / max(found["step_ms"], 1e-6)
    is_right = first is None if case["healthy"] else place.get("line") in case["lines"]
    said = f"{first['rule']} at line {place.get('line')}, {share:.0f} %" if first is not None else "nothing"
    change = card["title"] + " (diff)" * bool(card.get("diff")) if card is not None else "no change"
    truth = "healthy" if case["healthy"] else f"{100 * case['share_saved']:.0f} % at {case['lines']}"
    return f"{'yes' if is_right else ' - '}  {case['name']:18} {truth:40} {said}; {change}"


def judged(cases: list[dict[str, Any]]) -> str:
    """Return the sums of the first answers, set by set."""
    lines = []
    for name in dict.fromkeys(case["set"] for case in cases):
        mine = [case for case in cases if case["set"] == name]
        lines.append(f"{name}: {sum(not case['healthy'] for case in mine)} with a waste")
        for what in ("cause", "line", "change"):
            sums = Counter(case["first_answer"][what] for case in mine if not case["healthy"])
            lines.append(f"  {what}: " + ", ".join(f"{word} {num}" for word, num in sums.most_common()))
        healthy = Counter(case["first_answer"]["cause"] for case in mine if case["healthy"])
        lines.append("  healthy: " + ", ".join(f"{word} {num}" for word, num in healthy.most_common()))
    return "\n".join(lines)


def main() -> int:
    """Print the table; exit with 1 where a script could not be traced."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts, without .py; all of them without a name")
    parser.add_argument("--keep", type=Path, help="folder of diagnoses, which are not made again")
    parser.add_argument("--judged", action="store_true", help="print how the first answers were judged, and end")
    options = parser.parse_args()
    cases: list[dict[str, Any]] = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
    if options.judged:
        print(judged(cases))
        return 0
    failed = []
    with tempfile.TemporaryDirectory() as made:
        keep = options.keep or Path(made)
        keep.mkdir(parents=True, exist_ok=True)
        for case in cases:
            if not options.names or case["name"] in options.names:
                found = traced(FOLDER / case["file"], keep)
                print(row(case, found) if found is not None else f"not traced: {case['name']}", flush=True)
                failed += [case["name"]] * (found is None)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
