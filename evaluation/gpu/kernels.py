"""Measures what the kernels' benchmarks had not measured on a GPU yet; prints one JSON document.

Usage: scripts/python evaluation/gpu/kernels.py [--minutes 2.5] [--only rows] [--liger WHEEL] [--output FILE]

The parts, the most valuable first: ``adamw`` (a step with the norm clipped), ``linear`` (the last layer with its loss),
``prefetch``, ``graph``, ``deferred``, ``offload``, ``pointwise`` (GELU, bias and GELU, cross entropy), and ``rows``
(softmax and norms at 4,096 to 65,536 columns). They run in a process of their own. What fails in one way of
calculating is kept as its error; a part that takes the process down does not stop those after it, and what does not
fit into ``--minutes`` is left out and named. Bars go to standard error. Liger's kernels are compared with where
``liger_kernel`` can be imported, or lies as a wheel in ``.whl/`` or ``wheels/``. Without a GPU sizes are tiny, and the
figures say nothing: that tries the script itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REMEDIES, OPERATORS = "kernel_remedies", "kernel_operators"  # modules with a function for each part
PARTS = {
    "adamw": REMEDIES, "linear": OPERATORS, "prefetch": REMEDIES, "graph": REMEDIES, "deferred": REMEDIES,
    "offload": REMEDIES, "pointwise": OPERATORS, "rows": OPERATORS,
}  # fmt: skip
LEAST_S = 10.0  # a process that measures needs so long to begin
BROKEN = 3  # the GPU answers no more in this process


def child(parts: Sequence[str], log: Path, ends: float) -> int:
    """Run parts here, one after the other, each row and each end a line of the log."""
    sys.path.insert(0, str(ROOT / "evaluation" / "benchmarks"))
    from kernel_measures import about, release, works  # a sibling, once what it imports can be found

    _write(log, {"part": "about", "row": about()})
    for part in parts:
        _write(log, {"part": part, "began": True})
        began = time.monotonic()
        end: dict[str, Any] = {"part": part, "ended": True}
        try:
            measure = getattr(importlib.import_module(PARTS[part]), part)
            for row in measure(lambda: ends - time.monotonic()):
                _write(log, {"part": part, "row": row})
        except Exception as error:  # the other parts are still to come
            end["error"] = f"{type(error).__name__}: {error}"
            end["trace"] = traceback.format_exc()[-2000:]
        _write(log, {**end, "seconds": round(time.monotonic() - began, 1)})
        if not works():
            return BROKEN
        release()
    return 0


def _write(log: Path, line: Mapping[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if (row := line.get("row")) is not None:
        print(f"kernels: {line['part']}: {_shown(row)}", file=sys.stderr, flush=True)
    elif "error" in line:
        print(f"kernels: {line['part']} failed: {line['error']}", file=sys.stderr, flush=True)


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if v is not None)


def supervise(
    parts: Sequence[str], log: Path, ends: float, environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Run all parts, in a new process where one ended too early; return what each left."""
    left = list(parts)
    while left and ends - time.monotonic() > LEAST_S:
        command = [sys.executable, __file__, "--child", str(log), "--ends", str(ends), "--only", *left]
        process = subprocess.Popen(command, stdout=sys.stderr, env=dict(environment))
        try:
            why = f"the process ended with {process.wait(ends - time.monotonic() + LEAST_S)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            why = "the time was over"
        found = collected(log)
        for part in left:
            if part in found and not found[part].get("ended"):
                _write(log, {"part": part, "ended": True, "error": why})
        before, left = left, [part for part in left if part not in found]
        if left == before:  # it did not come as far as its first part: neither will the next
            _write(log, {"part": left.pop(0), "ended": True, "error": why})
            break
    for part in left:
        _write(log, {"part": part, "ended": True, "error": "left out: the time was over"})
    return collected(log)


def collected(log: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of each part, with its error and the seconds that it took."""
    found: dict[str, dict[str, Any]] = {}
    for text in log.read_text("utf-8").splitlines() if log.exists() else ():
        line = json.loads(text)
        part = found.setdefault(line.pop("part"), {"rows": []})
        if "row" in line:
            part["rows"].append(line["row"])
        else:
            part.update(line)
    return found


def bars(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what was promised, as the rows named it: ``what``, ``measured``, ``least``."""
    rows = (row for part in found.values() for row in part["rows"])
    return [{**row, "held": round(row["measured"], 2) >= row["least"]} for row in rows if "least" in row]


def print_bars(found: Sequence[Mapping[str, Any]]) -> None:
    print("\n| bar | measured | at least | held |\n|---|---|---|---|", file=sys.stderr)
    for bar in found:
        held = "yes" if bar["held"] else "**no**"
        print(f"| {bar['what']} | {bar['measured']:.2f} | {bar['least']} | {held} |", file=sys.stderr)


def liger_path(asked: Path | None, folder: Path) -> Path | None:
    """Return the folder that Liger can be imported from, unpacking its wheel; None where it is installed or missing."""
    if asked is None and find_spec("liger_kernel") is not None:
        return None
    wheels = [asked] if asked else [w for place in (".whl", "wheels") for w in (ROOT / place).glob("liger_kernel*.whl")]
    if not wheels:
        return None
    if wheels[0].is_dir():
        return wheels[0]
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "liger")
    return folder / "liger"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.5, help="measure for no longer (default: 2.5)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts")
    parser.add_argument("--liger", type=Path, help="wheel or folder with liger_kernel")
    parser.add_argument("--output", type=Path, help="write the document there too, and meanwhile its rows beside it")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.child:
        return child(options.only, options.child, options.ends)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log = options.output.with_suffix(".jsonl") if options.output else Path(folder) / "rows.jsonl"
        log.unlink(missing_ok=True)
        liger = liger_path(options.liger, Path(folder))
        paths = [str(ROOT), str(liger) if liger else "", os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ends = began + 60 * options.minutes
        found = supervise(options.only, log, ends, environment)
    held = bars(found)
    document = {"seconds": round(time.monotonic() - began, 1), "parts": found, "bars": held}
    print_bars(held)
    text = json.dumps(document, indent=1)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    failed = [name for name, part in found.items() if "error" in part]
    print(f"kernels: {document['seconds']} s; failed or left out: {', '.join(failed) or 'none'}", file=sys.stderr)
    return int(not all(bar["held"] for bar in held))


if __name__ == "__main__":
    sys.exit(main())
