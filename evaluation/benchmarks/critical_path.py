"""Compares the critical path with that of Holistic Trace Analysis on the real traces; writes pages/critical-path.md.

Usage: critical_path.py [--hta PYTHON] [--write FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from diagnose.errors import DiagnoseError
from diagnose.model.capture import Capture
from diagnose.pipeline.find import build_tables
from diagnose.replay import critical_path, shares, simulate
from diagnose.replay.build import graph_of
from diagnose.tables import Tables
from diagnose.tables.names import STEP_MARK
from diagnose.trace_reader import read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
LIMIT_S = 120
MAX_DIFFERENCE = 0.1  # of the step: two shares that differ by less say the same

PAGE = """# The critical path, beside that of Holistic Trace Analysis

Made by `evaluation/benchmarks/critical_path.py --hta PYTHON --write FILE`, where PYTHON has traceinsight
0.6.1, from the published traces with step marks and a device.

Both follow each wait to its reason and name what the path consists of. Holistic Trace Analysis takes one step (the
first); diagnose all steady steps. Shares are of the path: **host** is work of threads, **device** is kernels, copies
and collectives with the pauses between them.

{table}

{summary}

## Where they differ, and why

- **A host that runs ahead.** Where the device is the limit, the host is done long before it. Holistic Trace Analysis'
  path ends with the step's mark on the host, diagnose's with the last task that the steps launched. So a trace whose
  host waits nowhere (compiled steps, CUDA graphs) is all host there and mostly device here.
- **Waits that are inferred.** Without `cuda_sync` records only the order on a stream and the return of blocking calls
  are known to both. diagnose also takes a task that starts when one of another stream ends to have waited for it;
  Holistic Trace Analysis does not, so communication seldom lies on its path.
- **Launch latency.** It is an edge of its own there, and part of the device's share; here it is counted as latency.
- **The first step** need not be like the others; where loading or set-up falls into it, its path shows it.
- **What fails.** Files without a launch record for every task, and ROCm's, end in an error there; diagnose keeps such
  tasks by the order of their stream.
"""


def main() -> int:
    """Print or write the page."""
    asked = _parse()
    if not TRACES.is_dir():
        print("critical_path: the recorded traces (../shared/traces) are not here; nothing was compared.")
        return 0
    rows = [row for path in sorted(TRACES.glob("*.json.gz")) if (row := _row(path, asked.hta)) is not None]
    known = [row for row in rows if row[2] is not None]
    near = sum(abs(ours - theirs) <= MAX_DIFFERENCE for _, ours, theirs, _ in known if theirs is not None)
    head = ["| trace | host, diagnose | host, Holistic Trace Analysis |", "|---|---|---|"]
    lines = [
        f"| {name} | {ours:.0%} | {why if theirs is None else f'{theirs:.0%}'} |" for name, ours, theirs, why in rows
    ]
    summary = (
        f"{len(known)} of {len(rows)} traces give a path in both; in {near} of them the host's shares differ by at "
        f"most {MAX_DIFFERENCE:.0%} of the path."
    )
    page = PAGE.format(table="\n".join([*head, *lines]), summary=summary)
    if asked.write:
        asked.write.write_text(page, encoding="utf-8")
    print(summary if asked.write else page)
    return 0


def _row(path: Path, hta: Path) -> tuple[str, float, float | None, str] | None:
    try:
        capture = Capture(read_trace(path))
    except DiagnoseError:
        return None
    t = build_tables(capture, capture.trace)
    if t.device_id < 0 or not any(STEP_MARK.match(name) for name in t.trace.names):
        return None
    theirs, why = _theirs(path, hta)
    print(f"critical_path: {path.name}", file=sys.stderr)
    return path.name.removesuffix(".json.gz"), _ours(t), theirs, why


def _ours(t: Tables) -> float:
    graph = graph_of(t)
    return shares(t, graph, critical_path(graph, simulate(graph)))["host"]


def _theirs(path: Path, hta: Path) -> tuple[float | None, str]:
    """Return the host's share of the path in the first step, or None and why there is none."""
    command = [str(hta), str(Path(__file__).with_name("hta_critical_path.py")), str(path), "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        sums = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None, "no answer"
    if "failed" in sums:
        return None, str(sums["failed"]).partition(":")[0]
    whole = sum(sums.values())
    return (sums.get("cpu_bound", 0.0) / whole, "") if whole else (None, "an empty path")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--hta", type=Path, default=ROOT / ".venv-bench" / "bin" / "python", help="a Python that has it"
    )
    parser.add_argument("--write", type=Path, help="write the page to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
