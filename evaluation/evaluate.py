"""Runs every bundled pair of training scripts through the whole tool and writes pages/pairs.md.

For each pair: is the planted rule the dominant finding; what does the diagnosis predict for the step; what does prove
measure for the change that can be applied from outside; what does the repaired script take; is anything found in it.
Exits 1 below the bars: planted rule dominant in 95 % of the pairs that can show on the device, no speed-up claimed for
a change that changes nothing, the same losses bit by bit under changes that promise it, and a mean error of the
predicted step of at most 15 % (on a GPU 10 %). Exits 3 where ``--minutes`` were over before the last pair; with
``--keep`` the next run goes on from there.

``--ranges`` measures something else: whether what a change saves lies within the range that the report states, for
these pairs and for the scripts of third_party_scripts with a waste. Exits 1 where fewer than nine in ten do, or one
makes steps longer for certain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from range_runs import Pair, run_ranges, section_of
from yardstick.readers import ROOT, catalogue_of

from diagnose.changes import CHANGES, patch_of
from diagnose.model.statistics import speed_up
from diagnose.trials.runs import Command, Runner

STEPS = "3000"  # the runs are stopped long before
RULE_BAR = 0.95
ERROR_BAR = {"cpu": 0.15, "gpu": 0.10}
UNFINISHED = 3
FALSE_SHARE = 0.02
TIMEOUT_S = 180.0

NOT_YET = "\nOn a GPU this has not been run yet.\n"


@dataclass(frozen=True)
class Row:
    """One pair; times are ms."""

    name: str
    expected: tuple[str, ...]
    dominant: str | None
    now: float | None  # measured, unprofiled
    predicted: float | None  # after the prescription for the planted rule
    proven: tuple[str, float, float, float, str] | None  # id, speed-up, low, high, numerics
    sham: tuple[float, float, float, str] | None  # speed-up, low, high, numerics
    repaired: float | None
    false_findings: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Return whether the planted rule is the dominant finding."""
        return self.dominant in self.expected if self.expected else not self.dominant

    @property
    def after(self) -> float | None:
        """Return the step with the change: the one without it over the speed-up, which was measured in turns."""
        return self.now / self.proven[1] if self.now and self.proven else None

    @property
    def error(self) -> float | None:
        """Return how far the predicted step is off the one with the change, else off the repaired."""
        truth = self.after or self.repaired
        return None if self.predicted is None or not truth else self.predicted / truth - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a script's name; may be repeated")
    parser.add_argument("--write", type=Path, help="write the table there")
    parser.add_argument("--budget", default="5m", help="of each prove, which mostly ends before (default: 5m)")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--keep", type=Path, help="keep each pair's row there as JSON, and take those that are there")
    parser.add_argument("--minutes", type=float, help="begin no further pair after so many minutes")
    parser.add_argument("--ranges", action="store_true", help="whether stated ranges hold what is measured, on a CPU")
    parser.add_argument("--turns", type=int, default=5, help="runs of each form, with --ranges (default: 5)")
    parser.add_argument("--quantile", type=float, default=0.5, help="of a run's steps, with --ranges (default: 0.5)")
    parser.add_argument("--compiling", action="store_true", help="with --ranges: also changes that compile")
    options = parser.parse_args()
    if options.ranges:
        return run_ranges(_fixtures(), options)
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    rows = []
    for fixture in _fixtures():
        if fixture.expect[options.device] is None or (options.only and fixture.name not in options.only):
            continue
        row = _kept(fixture, options.keep)
        if row is None and time.monotonic() > ends:
            print(f"evaluate: no time is left for {fixture.name}", file=sys.stderr)
            return UNFINISHED
        print(f"evaluate: {fixture.name}", file=sys.stderr, flush=True)
        rows.append(row or _row(fixture, options.budget, options.device))
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{fixture.name}.json").write_text(json.dumps(asdict(rows[-1])), encoding="utf-8")
        print(_line(rows[-1]), flush=True)
    text = _page(rows, options.device)
    if options.write:
        options.write.write_text(text + section_of(options.write), encoding="utf-8")
    print(text)
    return 0 if _passed(rows, options.device) else 1


def _kept(fixture: Pair, folder: Path | None) -> Row | None:
    path = folder / f"{fixture.name}.json" if folder else None
    if path is None or not path.exists():
        return None
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(path.read_text("utf-8")).items()}
    return Row(**values)


def _row(fixture: Pair, budget: str, device: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        launcher = (
            (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={fixture.ranks}")
            if fixture.ranks > 1
            else ()
        )
        planted = _prove(fixture, launcher, budget, Path(folder), device)
        faster = _repairing(fixture, launcher, Path(folder), device)
        found = _false_findings(fixture, launcher, Path(folder) / "fixed", device)
    expected = fixture.expect[device] or ()
    trials = {t["id"]: t for t in planted["trials"] if t["kind"] == "single" and not t["failure"]}
    mine = [p for p in planted["prescriptions"] if p["rule"] in expected]
    tried = next((p for p in mine if p["id"] in trials), None)
    chosen = trials[tried["id"]] if tried else None
    baseline = next((t["baseline_ms"] for t in ([chosen] if chosen else trials.values())), None)
    predicted = chosen["predicted_ms"] if chosen else _predicted(planted, mine[0], baseline) if mine else None
    sham = trials.get("sham")
    return Row(
        name=fixture.name,
        expected=expected,
        dominant=planted["dominant"],
        now=baseline,
        predicted=predicted,
        proven=None if chosen is None else (chosen["id"], chosen["speed_up"], *chosen["interval"], chosen["numerics"]),
        sham=None if sham is None else (sham["speed_up"], *sham["interval"], sham["numerics"]),
        repaired=baseline / faster if baseline and faster else None,
        false_findings=tuple(f for f in found if f not in (fixture.fixed[device] or ())),
    )


def _predicted(planted: dict[str, Any], prescription: dict[str, Any], baseline: float | None) -> float | None:
    """Return the step after a change that only the author can make, ms, as `diagnose prove` predicts the others."""
    if baseline is None or prescription["predicted_step_ms"] is None:
        return None
    ratio = prescription["predicted_step_ms"] / planted["step_ms"] if planted["step_ms"] else None
    return baseline * ratio if ratio is not None else None


def _prove(fixture: Pair, launcher: tuple[str, ...], budget: str, folder: Path, device: str) -> dict[str, Any]:
    """Prove what the diagnosis prescribes, and a change that changes nothing."""
    traced = _diagnose(
        "trace", "--json", "--quiet", "--capture", str(folder / "capture"), *_script(fixture, device), launcher=launcher
    )
    ids = [p["id"] for p in traced["prescriptions"]]
    applicable = [name for name in ids if name in _patches(device)]
    arguments = ("--launcher", " ".join(launcher)) if launcher else ()
    wanted = ",".join([*applicable[:2], "sham"])
    given = ("--yes", "--json", "--quiet", "--budget", budget, "--apply", wanted, *arguments)
    return _diagnose("prove", *given, *_script(fixture, device))


def _repairing(fixture: Pair, launcher: tuple[str, ...], folder: Path, device: str) -> float | None:
    """Return how many times as fast the repaired script is as the planted one, run in turns."""
    steps: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    for i, fixed in enumerate((False, True, True, False)):
        command = Command((*_script(fixture, device), *(("--fixed",) if fixed else ())), ROOT, launcher)
        runner = Runner(command, folder / f"turn{i}", cwd_mode="same", warm_up=20, timed=60)
        run = runner.time((), timeout_s=TIMEOUT_S)
        if run.step_ns:
            steps[fixed].append(run.step_ns)
    return speed_up(steps[False], steps[True], noise=0.0).ratio if all(steps.values()) else None


def _false_findings(fixture: Pair, launcher: tuple[str, ...], folder: Path, device: str) -> list[str]:
    fixed = _diagnose(
        "trace", "--json", "--quiet", "--capture", str(folder), *_script(fixture, device), "--fixed", launcher=launcher
    )
    return [f"{f['rule']} {f['lost_share']:.0%}" for f in fixed["findings"] if f["lost_share"] > FALSE_SHARE]


def _script(fixture: Pair, device: str) -> tuple[str, ...]:
    return (str(fixture.path), "--device", "cuda" if device == "gpu" else "cpu", "--steps", STEPS)


def _diagnose(*arguments: str, launcher: tuple[str, ...] = ()) -> dict[str, Any]:
    command = [*(launcher or (sys.executable,)), "-m", "diagnose", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _patches(device: str) -> set[str]:
    patches = {name: patch_of(name) for name in CHANGES}
    return {name for name, patch in patches.items() if patch and (device == "gpu" or not patch.needs_gpu)}


def _fixtures() -> list[Pair]:
    return list(catalogue_of(ROOT / "fixtures").fixtures())


def _errors(rows: list[Row], *, proven: bool) -> list[float]:
    return [abs(row.error) for row in rows if row.error is not None and bool(row.proven) is proven]


def _false_claims(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.sham is not None and (row.sham[1] > 1 or row.sham[3] == "drifted")]


def _promises(rows: list[Row]) -> tuple[int, int]:
    """Return how many changes that promise the same numbers kept the losses bit by bit, and how many there are."""
    promised = [row for row in rows if row.proven and CHANGES[row.proven[0]].numerics.promise == "identical"]
    return sum(row.proven[-1] == "identical" for row in promised if row.proven), len(promised)


def _passed(rows: list[Row], device: str) -> bool:
    right = sum(row.right for row in rows) / max(len(rows), 1)
    errors = _errors(rows, proven=True)
    kept, promised = _promises(rows)
    return (
        right >= RULE_BAR
        and not _false_claims(rows)
        and kept == promised
        and (not errors or mean(errors) <= ERROR_BAR[device])
    )


def _line(row: Row) -> str:
    proven = (
        f"{row.proven[0]}: {row.proven[1]:.2f} × ({row.proven[2]:.2f} to {row.proven[3]:.2f}), {row.proven[4]}"
        if row.proven
        else "by hand"
    )
    sham = f"{row.sham[0]:.2f} × ({row.sham[1]:.2f} to {row.sham[2]:.2f})" if row.sham else "–"
    cells = (
        row.name,
        ", ".join(row.expected) or "none",
        f"{row.dominant or 'none'}{'' if row.right else ' (wrong)'}",
        _ms(row.now),
        _ms(row.predicted),
        proven,
        _ms(row.after),
        _ms(row.repaired),
        f"{row.error:+.0%}" if row.error is not None else "–",
        sham,
        ", ".join(row.false_findings) or "none",
    )
    return "| " + " | ".join(cells) + " |"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _mean(errors: list[float]) -> str:
    return f"{mean(errors):.0%} on average over {len(errors)} pairs" if errors else "not measured"


def _page(rows: list[Row], device: str) -> str:
    kept, promised = _promises(rows)
    error, by_hand = (_mean(_errors(rows, proven=proven)) for proven in (True, False))
    noise = _mean([abs(row.sham[0] - 1) for row in rows if row.sham])
    made = "--device gpu --write FILE" if device == "gpu" else "--write FILE"
    return f"""# The whole tool on the bundled pairs

Made by `evaluation/evaluate {made}` on {_machine(device)}. Each script of
[fixtures](../../fixtures/README.md) holds one planted bottleneck and a repaired variant (`--fixed`). Times are ms per
step, unprofiled medians.

- **found**: the dominant finding of the planted script, against the rule that its header names.
- **predicted**: the step after the first prescription for that rule, by replay: its saving is taken from the recorded
  step less what recording cost, and scaled to the unprofiled one.
- **proven**: what `diagnose prove` measured for the change, where it can be applied from outside.
- **step then**, **repaired**: the step over how many times as fast the changed and the repaired script are in runs that
  take turns, so that slow spells of a shared machine fall on both sides.
- **error**: the predicted step against the proven one, else against the repaired script's.
- **control**: the speed-up that prove reports for a change that changes nothing; its interval must hold 1.
- **found when repaired**: findings above {FALSE_SHARE:.0%} of the step in the repaired script, which shows its next
  bottleneck.

Planted rule dominant: {sum(row.right for row in rows)} of {len(rows)} (bar {RULE_BAR:.0%}).
Error of the predicted step where the very change was proven: {error} (bar {ERROR_BAR[device]:.0%}).
Where it has to be made by hand, against the repaired script, which may do more or less than prescribed: {by_hand}.
Noise: the control, which is 1 but for the machine, was off by {noise}.
Speed-ups claimed for the control: {len(_false_claims(rows))} (bar 0).
Changes that promise the same numbers and kept the losses bit by bit: {kept} of {promised} (bar: all).

| pair | planted | found | step | predicted | proven | step then | repaired | error | control | found when repaired |
|---|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(_line(row) for row in rows)}
{"" if device == "gpu" else NOT_YET}"""


def _machine(device: str) -> str:
    if device == "cpu":
        return f"a CPU: {os.cpu_count()} shared cores, {os.environ.get('OMP_NUM_THREADS', 'all')} threads"
    import torch

    return f"one {torch.cuda.get_device_name()}, torch {torch.__version__}"


if __name__ == "__main__":
    raise SystemExit(main())
