"""Scores the tool on public reports of slow training that were rebuilt as scripts and traces, planted and repaired.

A case is right where the first finding has the planted cause, where it or the first change names the line, and where
the first change is the one that the report's fix made. The repaired form is right where the cause no longer answers,
or costs less than half of what it did. These are development data: what was corrected by them is not measured by them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "cases"
TRACE_SECONDS = 600
RANKED = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Case(NamedTuple):
    """What is true of a case."""

    cause: str  # in a few words
    rules: tuple[str, ...]  # that name it
    lines: tuple[int, ...]  # of which one is named
    changes: tuple[str, ...]
    title: str = ""  # a part of the finding's title, where its rule finds several causes


LOADING, SAMPLE = ("data-stall",), ("cheaper-line", "cheaper-sample", "load-once")
CASES = {
    "anomaly_left": Case("anomaly detection left on", ("debug-mode",), (11,), ("no-debug-checks",)),
    "column_first": Case("whole column converted", ("wasted-sample",), (27, 28), SAMPLE, "same for every sample"),
    "ddp_rank0_preview": Case("one rank decodes PNG", LOADING, (41, 42), SAMPLE),
    "deque_replay": Case("deque indexed", ("python-stall",), (16, 24), ("python-off-the-loop",), "deque"),
    "ema": Case("average parameter by parameter", ("launch-bound",), (30,), ("vectorise-loop",)),
    "float64_noise": Case("NumPy's float64", ("too-wide",), (19, 26, 27), ("single-precision",)),
    "gradnorms": Case("norm read per parameter", ("host-sync",), (40,), ("defer-sync",)),
    "hdf5_chunk": Case("chunks of 24 frames", LOADING, (22, 42), (*SAMPLE, "pack-samples")),
    "hf_padding": Case("padded to the maximum", ("work-on-nothing",), (28, 32, 33), ("trim-padding",)),
    "item": Case("loss read per batch, 1 %", ("host-sync", "none"), (146,), ("defer-sync", "none")),
    "pandas_iloc": Case("iloc for each sample", LOADING, (31,), SAMPLE),
    "replay_copy": Case("whole buffer copied", ("growing-steps", "growing-work"), (26,), ("bound-work",)),
    "slice_sampler": Case("boundaries searched again", ("constant-work",), (19,), ("reuse-result",)),
    "worker_restart": Case("workers restarted", LOADING, (46,), ("keep-workers",), "again with each epoch"),
}


class Answer(NamedTuple):
    """What the tool states first."""

    rule: str
    title: str
    lost_ms: float  # per step
    change: str
    lines: tuple[tuple[int, int], ...]  # first and last, of the finding's first place and of the change's
    headline: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of cases; all without any")
    parser.add_argument("--planted", action="store_true", help="leave the repaired forms out")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="with the scripts and traces")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print("skipped: the rebuilt reports (../shared/cases) are not here")
        return 0
    right = [0, 0, 0, 0]
    print("| case | cause | line | change | repaired | truth | answer |\n|---|---|---|---|---|---|---|")
    names = options.names or list(CASES)
    for name in names:
        case, planted = CASES[name], answer(options.folder / name)
        if isinstance(planted, str):
            print(f"| {name} | | | | | {case.cause} | not run: {planted} |", flush=True)
            continue
        repaired = None if options.planted else answer(options.folder / f"{name}_fixed")
        marks = score(case, planted, repaired)
        right = [num + bool(mark) for num, mark in zip(right, marks, strict=True)]
        shown = " | ".join({True: "right", False: "wrong", None: ""}[mark] for mark in marks)
        lines = ",".join(f"{first}" if first == last else f"{first}–{last}" for first, last in planted.lines)
        truth = f"{case.cause}, {'/'.join(map(str, case.lines))}"
        print(f"| {name} | {shown} | {truth} | {planted.headline}: {planted.change}, {lines} |", flush=True)
    print(f"\nOf {len(names)}: cause {right[0]}, line {right[1]}, change {right[2]}, repaired {right[3]}.")
    return 0


def score(case: Case, planted: Answer, repaired: Answer | str | None) -> tuple[bool | None, ...]:
    """Return whether cause, line, change and the repaired form are right; None for what was not run."""
    cause = planted.rule in case.rules and case.title in planted.title
    line = any(first <= each <= last for first, last in planted.lines for each in case.lines)
    change = planted.change in case.changes
    if not isinstance(repaired, Answer):
        return cause, line or planted.rule == "none", change, None
    returns = repaired.rule in case.rules and repaired.rule != "none" and repaired.lost_ms >= planted.lost_ms / 2
    return cause, line or (cause and planted.rule == "none"), change, not returns


def answer(case: Path) -> Answer | str:
    """Trace the script, or analyze the trace, and return what is stated first, or why it did not run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        script = case.with_suffix(".py")
        ranks = RANKED if case.name.startswith("ddp_") else ()
        command = ("trace", "-o", str(out), str(script)) if script.is_file() else ("analyze", "-o", str(out))
        given = () if script.is_file() else (str(case.with_suffix(".json.gz")),)
        run = subprocess.run(
            [sys.executable, *ranks, "-m", "diagnose", *command, *given],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=TRACE_SECONDS,
            check=False,
        )
        if not out.is_file():
            return (run.stderr.strip().splitlines() or ["no answer"])[-1]
        return read(json.loads(out.read_text()))


def read(found: dict[str, Any]) -> Answer:
    """Return what a diagnosis states first."""
    rule = found["dominant"]
    finding = next((each for each in found["findings"] if each["rule"] == rule), None)
    cards = found["answer"]["cards"]
    card = next((each for each in found["prescriptions"] if cards and each["id"] == cards[0]), None)
    places = [*(finding["where"][:1] if finding else ()), *(card["edits"] if card else ())]
    lines = tuple((each["line"], each["last_line"] or each["line"]) for each in places if each["line"])
    title, lost_ms = (finding["title"], finding["lost_ms"]) if finding else ("", 0.0)
    return Answer(rule or "none", title, lost_ms, card["id"] if card else "none", lines, found["headline"])


if __name__ == "__main__":
    sys.exit(main())
