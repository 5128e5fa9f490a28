"""Fails when a test was skipped that should have run: only a missing GPU, or missing data, is a reason.

Usage: skips.py JUNIT_XML
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "traces"


def unwanted(results: Path) -> list[str]:
    """Return one line for each skipped test whose reason is not that the machine has no GPU or no corpus."""
    lines = []
    for case in ElementTree.parse(results).iter("testcase"):
        for skip in case.iter("skipped"):
            reason = skip.get("message", "")
            if skip.get("type") == "pytest.xfail" or "gpu" in reason.lower() or "cuda" in reason.lower():
                continue
            if "shared/traces" in reason and not CORPUS.is_dir():
                continue
            lines.append(f"{case.get('classname')}.{case.get('name')}: {reason}")
    return lines


def main(results: Path) -> int:
    """Print what was skipped and return the exit code; results that pytest did not finish writing fail, too."""
    try:
        found = unwanted(results)
    except (OSError, ElementTree.ParseError):
        print(f"{results.name} holds no results: pytest ended before it wrote them, so skipped tests are not known")
        return 1
    print("\n".join(["skipped, but should have run:", *found]) if found else "no wanted test was skipped")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
