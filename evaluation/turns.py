"""Measures trials by turns against what is known: a script against itself, and planted gains.

Every script is drawn by a seed: a step of 2 to 40 ms of Python, small matrices or an uneven mixture of both, whose work
is an argument. The same work is no gain, whatever is found; work that is smaller by a known factor is a known gain. The
forms run as those of ``diagnose prove``: in copies, under guards, in teams. Every second script that is set against
itself has a busy process beside it, one thread for all of the time. Prints a row for each trial, and the sums.

    python evaluation/turns.py --same 20 --pairs 20 --eight
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from diagnose.model.diagnosis import Trial
from diagnose.trials.by_turns import by_turns
from diagnose.trials.candidates import Candidate
from diagnose.trials.launch import EndedBySignal, ended_by_signals, run_folder
from diagnose.trials.runs import Command, Runner
from diagnose.trials.turn_process import TurnProcess

SCRIPT = """
import sys
import torch

kind, work = sys.argv[1], int(sys.argv[2])
if len(sys.argv) > 3:
    work = round(work / float(sys.argv[3]))
torch.manual_seed(0)
a, b = torch.randn(64, 64), torch.randn(64, 64)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    if kind != "matrices":
        for _ in range(work):
            sum(range(100))
    if kind != "python":
        for _ in range(work):
            torch.mm(a, b)
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CALIBRATE = """
import sys, time
import torch

torch.set_num_threads(1)
a, b = torch.randn(64, 64), torch.randn(64, 64)
best = {}
for name, call in {"python": lambda: sum(range(100)), "matrices": lambda: torch.mm(a, b)}.items():
    each = []
    for _ in range(20):
        began = time.perf_counter_ns()
        for _ in range(200):
            call()
        each.append((time.perf_counter_ns() - began) / 200)
    best[name] = min(each)
print(best["python"], best["matrices"])
"""
KINDS = ("python", "matrices", "both")
GAINS = (1.03, 1.05, 1.1, 1.3)
EIGHT = (1.3, 1.1, 1.05, 1.03, 1.0, 1.0, 0.95, 0.8)
LABELS = (  # ids that no other one excludes: they name the forms, and nothing of them is applied
    "cache-samples", "concurrent-samples", "defer-sync", "load-in-workers", "load-on-thread", "schedule-gc",
    "save-in-background", "load-once",
)  # fmt: skip
BUSY = "while True: pass"


@dataclass
class Planted(Runner):
    """Runs of a script whose candidates are arguments; each applies the control that changes nothing."""

    gains: Mapping[str, float] = field(default_factory=dict)

    def live(self, number: int, ids: Sequence[str], *, timeout_s: float) -> TurnProcess:
        """Prepare a process with the argument of its form."""
        gain = 1.0
        for name in ids:
            gain *= self.gains[name]
        script = self.command.script
        self.command = replace(self.command, script=(*script[:3], *([str(gain)] if ids else [])))
        try:
            return super().live(number, ("sham",) if ids else (), timeout_s=timeout_s)
        finally:
            self.command = replace(self.command, script=script)


def measure(script: Sequence[str], gains: Sequence[float], budget_s: float) -> tuple[Sequence[Trial], float]:
    """Return the trials of planted gains, by themselves, and the seconds that they took."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turns-")))
        private = stack.enter_context(run_folder())
        (folder / "train.py").write_text(SCRIPT)
        names = LABELS[: len(gains)]
        runner = Planted(Command(("train.py", *script), folder), private, gains=dict(zip(names, gains, strict=True)))
        stack.callback(runner.close)
        began = time.monotonic()
        spent: list[float] = []

        def said(text: str) -> None:
            print(f"    {text}", file=sys.stderr, flush=True)
            if " x (" in text:
                spent.append(time.monotonic() - began)

        found = by_turns(runner, [Candidate(name, name) for name in names], budget_s, said).trials
        return [trial for trial in found if trial.kind == "single"], spent[len(gains) - 1] if spent else 0.0


def drawn(rng: random.Random, unit_ns: Mapping[str, float], step_ms: float | None = None) -> list[str]:
    """Return the arguments of a script: the kind of its work, and how much."""
    kind = rng.choice(KINDS)
    step_ns = 1e6 * (step_ms or rng.choice((2, 5, 10, 20, 40)))
    unit = sum(unit_ns.values()) if kind == "both" else unit_ns[kind]
    return [kind, str(max(1, round(step_ns / unit)))]


def row(what: str, script: Sequence[str], trial: Trial, gain: float, took_s: float) -> dict[str, object]:
    """Return what one trial shows, and print it."""
    low, high = trial.interval
    found: dict[str, object] = {
        "trial": what,
        "script": " ".join(script),
        "gain": gain,
        "found": round(trial.speed_up, 4),
        "interval": [round(low, 4), round(high, 4)],
        "half_width": round((high / low) ** 0.5 - 1, 4) if low > 0 else None,
        "holds": low <= gain <= high,
        "certain": "faster" if low > 1 else "slower" if 0 < high < 1 else "",
        "doubt": trial.doubt,
        "failure": trial.failure,
        "took_s": round(took_s, 1),
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),  # processes for each core, those of the trial too
    }
    print(json.dumps(found), flush=True)
    return found


def summary(rows: Sequence[dict[str, object]]) -> str:
    """Return the sums over trials of one kind."""
    widths = [float(str(each["half_width"])) for each in rows if each["half_width"] is not None]
    wrong = sum(each["certain"] not in ("", "faster" if float(str(each["gain"])) > 1 else "slower") for each in rows)
    same = sum(each["certain"] != "" and each["gain"] == 1.0 for each in rows)
    certain = sum(bool(each["certain"]) for each in rows)
    held = sum(bool(each["holds"]) for each in rows)
    took = [float(str(each["took_s"])) for each in rows]
    return (
        f"{len(rows)} trials: {certain} certain, of these {max(wrong, same)} wrong; the interval holds the truth in "
        f"{held}; half-width {100 * median(widths):.1f} % in the median, {100 * max(widths):.1f} % at most; "
        f"{median(took):.0f} s in the median, {max(took):.0f} s at most"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--same", type=int, default=0, help="scripts that are set against themselves")
    parser.add_argument("--pairs", type=int, default=0, help="planted gains of 3, 5, 10 and 30 %%, in turns")
    parser.add_argument("--eight", action="store_true", help="eight candidates on a step of 20 ms")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds of a trial, with starting")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    done = subprocess.run([sys.executable, "-c", CALIBRATE], check=True, capture_output=True, text=True)
    unit_ns = dict(zip(("python", "matrices"), map(float, done.stdout.split()), strict=True))
    sums = {}
    rows: list[dict[str, object]] = []
    for i in range(options.same):
        busy = subprocess.Popen([sys.executable, "-c", BUSY]) if i % 2 else None
        try:
            script = drawn(rng, unit_ns)
            (trial,), took_s = measure(script, [1.0], options.budget)
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
        rows.append(row("same, beside a busy process" if i % 2 else "same", script, trial, 1.0, took_s))
    if rows:
        sums["same"] = summary(rows)
    rows = []
    for i in range(options.pairs):
        script, gain = drawn(rng, unit_ns), GAINS[i % len(GAINS)]
        (trial,), took_s = measure(script, [gain], options.budget)
        rows.append(row("pair", script, trial, gain, took_s))
    if rows:
        sums["pairs"] = summary(rows)
        large = [each for each in rows if float(str(each["gain"])) >= 1.05]
        sums["pairs of 5 % and more"] = summary(large) if large else ""
    if options.eight:
        script = drawn(rng, unit_ns, step_ms=20)
        trials, took_s = measure(script, EIGHT, 2 * options.budget)
        rows = [row("eight", script, trial, gain, took_s) for trial, gain in zip(trials, EIGHT, strict=True)]
        sums["eight"] = summary(rows)
    for what, text in sums.items():
        print(f"{what}: {text}")
    return 0


if __name__ == "__main__":
    try:
        with ended_by_signals():
            raise SystemExit(main())
    except EndedBySignal as ended:  # the busy process has ended too
        raise SystemExit(ended.exit_code) from None
