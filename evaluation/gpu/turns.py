r"""Lets forms of a script take turns in the current folder, and prints what was measured as JSON.

    python evaluation/gpu/turns.py fixtures/loop_optimizer.py --steps 1000000 \
        --forms 'unchanged;unchanged;fused-optimizer;args:--fixed' --seconds 60

A form is "unchanged" (two of them control each other), ids of changes joined by "+", or "args:" and arguments that the
script gets in addition: a pair whose gain is known by other means. What is no option of this file goes to the script,
which must train on for longer than is measured. The script writes where it writes: there is no copy of the folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from diagnose.trials.launch import EndedBySignal, Launch, ended_by_signals, run_folder
from diagnose.trials.measuring import TrialRequest
from diagnose.trials.turn_process import TurnProcess, start_all
from diagnose.trials.turn_statistics import Round, instance_ratios
from diagnose.trials.turns import Block, TurnPlan, TurnResult, take_turns

UNCHANGED, ARGUMENTS = "unchanged", "args:"
SHOWN_AFTER_S = (15, 30, 45, 60)


@dataclass
class ScriptForm:
    """A form of the script: its present process, and those before."""

    name: str
    script: Sequence[str]
    step_on: str
    processes: list[TurnProcess] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)  # how many each process recorded
    applied: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def next(self, folder: Path) -> TurnProcess:
        """Make the next process, which is not yet started."""
        of_form = self.name.startswith(ARGUMENTS)
        more = shlex.split(self.name[len(ARGUMENTS) :]) if of_form else []
        ids = () if of_form or self.name == UNCHANGED else tuple(self.name.split("+"))
        launch = Launch([*self.script, *more], Path.cwd(), folder)
        order = TrialRequest(str(folder / "result.json"), ids, step_on=self.step_on)
        self.processes.append(TurnProcess(launch, folder, order, folder / "s"))
        return self.processes[-1]

    def block(self, seconds: float) -> Block:
        """Run a block in the present process."""
        return self.processes[-1].block(seconds)

    def end(self) -> None:
        """End the present process and keep what it reported."""
        run = self.processes[-1].end()
        self.losses.append(len(run.losses))
        self.applied, self.refused = run.applied, run.refused


def measure(forms: Sequence[ScriptForm], plan: TurnPlan, folder: Path) -> TurnResult:
    """Let the forms take turns; every process has ended afterwards."""
    unchanged = [number for number, form in enumerate(forms) if form.name == UNCHANGED]
    num = 0

    def renew(numbers: Sequence[int]) -> dict[int, str]:
        nonlocal num
        num += 1
        for number in numbers:
            if forms[number].processes:
                forms[number].end()
        print(f"turns: starting {len(numbers)} processes", file=sys.stderr, flush=True)
        failed = start_all({number: forms[number].next(folder / f"{num}-{number}") for number in numbers})
        for number, why in failed.items():
            print(f"turns: {forms[number].name}: {why}", file=sys.stderr, flush=True)
        return failed

    try:
        found = take_turns(forms, unchanged, plan, renew)
        for number, form in enumerate(forms):
            if number not in found.failed:
                form.end()
        return found
    finally:
        for form in forms:
            for process in form.processes:
                process.kill()


def report(forms: Sequence[ScriptForm], found: TurnResult, wall_s: float) -> dict[str, Any]:
    """Return everything that was measured."""
    unchanged = [number for number, form in enumerate(forms) if form.name == UNCHANGED]
    return {
        "disturbed": found.disturbed,
        "measured_s": round(found.seconds, 1),
        "wall_s": round(wall_s, 1),
        "rounds": len(found.rounds),
        "instances": found.num_instances,
        "forms": [_of_form(number, form, found, unchanged) for number, form in enumerate(forms)],
    }


def _of_form(number: int, form: ScriptForm, found: TurnResult, unchanged: Sequence[int]) -> dict[str, Any]:
    estimate = found.estimates[number]
    num_steps = [num for process in form.processes for num in process.num_steps]
    steps = [each.step_ns[number] for each in found.rounds if number in each.step_ns]
    certain = next((look.seconds for look in found.looks if look.estimates[number].verdict != "open"), None)
    return {
        "form": form.name,
        "verdict": estimate.verdict,
        "ratio": round(estimate.ratio, 4),
        "interval": _rounded(estimate.low, estimate.high),
        "interval_99": _rounded(estimate.surely_low, estimate.surely_high),
        "half_width": {
            after: _half_width(found, number, after) for after in SHOWN_AFTER_S if after < found.seconds + 1
        },
        "first_certain_s": None if certain is None else round(certain, 1),
        "dropped_s": found.dropped.get(number),
        "rounds": estimate.num_rounds,
        "instance_ratios": [_rounded(*each) for each in instance_ratios(found.rounds, number, unchanged)],
        "mean_ratio": _mean_ratio(found.rounds, number, unchanged),
        "whole_block_ms": _whole_block_ms(form),
        "step_ms": round(median(steps) / 1e6, 4) if steps else None,
        "steps_per_block": median(num_steps) if num_steps else None,
        "ready_s": [_rounded(process.imported_s, process.ready_s, digits=2) for process in form.processes],
        "losses": form.losses,
        "applied": form.applied,
        "refused": form.refused,
        "failure": found.failed.get(number, ""),
    }


def _rounded(*values: float, digits: int = 4) -> list[float | None]:
    return [round(value, digits) if value < inf else None for value in values]


def _half_width(found: TurnResult, number: int, after_s: float) -> float | None:
    """Return half the interval that was known after some seconds, None where nothing was."""
    known = [look.estimates[number].half_width for look in found.looks if look.seconds <= after_s + 0.5]
    return round(known[-1], 4) if known and known[-1] < inf else None


def _mean_ratio(rounds: Sequence[Round], number: int, unchanged: Sequence[int]) -> float | None:
    """Return the ratio of plain means over all rounds, in which every stall and every rare step counts."""
    both = [each.step_ns for each in rounds if {number, *unchanged} <= each.step_ns.keys()]
    if not both:
        return None
    before = fmean(each[other] for each in both for other in unchanged)
    return round(before / fmean(each[number] for each in both), 4)


def _whole_block_ms(form: ScriptForm) -> float | None:
    """Return the median step if blocks are timed from request to answer, with dropped steps and the drain."""
    each = [ns for process in form.processes for ns in process.wall_ns_per_step]
    return round(median(each) / 1e6, 4) if each else None


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, formatter_class=shown)
    parser.add_argument("script")
    parser.add_argument("--forms", default=f"{UNCHANGED};{UNCHANGED}", help="separated by semicolons")
    parser.add_argument("--form-argument", action="append", default=[], help="one more form: the script with this")
    parser.add_argument("--seconds", type=float, default=45.0, help="of rounds; starting processes is not counted")
    parser.add_argument("--block", type=float, default=0.15, help="seconds of a block")
    parser.add_argument("--instances", type=int, default=2, help="processes of each form, one after the other")
    parser.add_argument("--until-certain", action="store_true", help="drop forms early and end once all are certain")
    parser.add_argument("--step-on", default="auto")
    parser.add_argument("--raw", type=Path, help="a file for the mean step of every block")
    options, arguments = parser.parse_known_args()
    names = [*filter(None, options.forms.split(";")), *(f"{ARGUMENTS}{each}" for each in options.form_argument)]
    if UNCHANGED not in names:
        parser.error(f"one of --forms must be {UNCHANGED!r}")
    script = [str(Path(options.script).resolve()), *arguments]
    forms = [ScriptForm(name.strip(), script, options.step_on) for name in names]
    plan = TurnPlan(options.seconds, options.block, options.instances, until_certain=options.until_certain)
    began = time.monotonic()
    try:
        with ended_by_signals(), run_folder() as folder:
            found = measure(forms, plan, folder)
    except EndedBySignal as ended:
        return ended.exit_code
    if options.raw:
        options.raw.write_text(json.dumps([asdict(each) for each in found.rounds]), encoding="utf-8")
    print(json.dumps(report(forms, found, time.monotonic() - began), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
