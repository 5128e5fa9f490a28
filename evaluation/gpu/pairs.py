"""Runs every script of fixtures/ with its waste and repaired, without a profiler, and prints both step times as JSON.

All run in this process, one after the other, so that torch is imported once; scripts that need ranks are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures"))
from catalogue import Fixture, fixtures  # a sibling of the scripts that it lists

STEP = re.compile(r"step_ms=([\d.]+)")


def step_ms(fixture: Fixture, device: str, steps: int, *, fixed: bool) -> float | None:
    """Return the mean step that the script itself measures; None where it failed."""
    sys.argv = [str(fixture.path), "--device", device, "--steps", str(steps), *(["--fixed"] if fixed else [])]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            runpy.run_path(str(fixture.path), run_name="__main__")
    except Exception as error:  # the other scripts are still to come
        print(f"pairs: {fixture.name}: {type(error).__name__}: {error}", file=sys.stderr)
    gc.collect()
    found = STEP.search(out.getvalue())
    return float(found[1]) if found else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    found = {}
    for fixture in fixtures():
        if fixture.ranks > 1 or (options.only and fixture.name not in options.only):
            continue
        pair = [step_ms(fixture, options.device, options.steps, fixed=fixed) for fixed in (False, True)]
        found[fixture.name] = {"planted": pair[0], "fixed": pair[1]}
        print(f"pairs: {fixture.name} {pair}", file=sys.stderr, flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
