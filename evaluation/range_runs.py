"""Runs bundled scripts as they are and changed, in turns, and compares what that saves with the range of their report.

A script's recording and the times of its runs are kept, so that the ranges can be stated again, by the code as it is
by then, and compared with the same measurement.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from range_scoring import RangeRow, Saving, holds, mean_saving, stated_range, summary, table, usual_saving
from third_party_repairs import REPAIRS, repair
from yardstick.readers import ROOT, catalogue_of

from diagnose.changes import patch_of
from diagnose.model.diagnosis import Diagnosis, Prescription
from diagnose.pipeline.run import analyze_paths
from diagnose.trials.runs import Command, Runner

FOLDER = ROOT / "evaluation" / "third_party_scripts"
TIMED_S = 2.5  # of steps in a run: most of a run is the start of Python and torch
TIMED = (20, 300)  # steps of a run, at least and at most
WARM_UP = 20
TIMEOUT_S = 180.0
UNFINISHED = 3
HEADING = "## Whether ranges hold what is measured"
RESULT = "<!-- below: evaluation/evaluate --ranges --write -->\n"

Steps = tuple[tuple[float, ...], ...]


class Pair(Protocol):
    """What fixtures/catalogue.py tells of a script."""

    name: str
    path: Path
    expect: Mapping[str, tuple[str, ...] | None]
    fixed: Mapping[str, tuple[str, ...] | None]
    ranks: int


@dataclass(frozen=True)
class Subject:
    """A script with a planted waste."""

    name: str
    rules: tuple[str, ...]  # of its waste
    words: tuple[str, ...]  # how it is started, in its folder
    folder: str = "."  # below the project
    launcher: tuple[str, ...] = ()
    prepare: str = ""
    is_fixture: bool = True
    has_repair: bool = True

    @property
    def repaired(self) -> tuple[str, ...]:
        """Return how its repaired form is started."""
        return (*self.words, "--fixed") if self.is_fixture else self.words

    def project(self, scratch: Path, *, repaired: bool) -> Path:
        """Return the folder that it runs in: a copy where it is not one of the fixtures."""
        if self.is_fixture:
            return ROOT
        made = scratch / ("repaired" if repaired else "planted")
        if not made.exists():
            shutil.copytree(FOLDER, made, ignore=shutil.ignore_patterns("__pycache__", "catalogue.py", "ruff.toml"))
            if self.prepare:
                subprocess.run([sys.executable, str(made / self.prepare)], check=True)
            if repaired:
                repair(self.name, made)
        return made / self.folder


def subjects(fixtures: Sequence[Pair], outsiders: Sequence[Any]) -> Iterator[Subject]:
    """Yield every script with a waste that shows without a device, of one process or two."""
    for fixture in fixtures:
        launcher = (
            (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={fixture.ranks}")
            if fixture.ranks > 1
            else ()
        )
        if rules := fixture.expect["cpu"]:
            yield Subject(
                fixture.name, rules, (str(fixture.path), "--device", "cpu", "--steps", "20000"), ".", launcher
            )
    for script in outsiders:
        if script.rules and script.launcher != "torchrun":
            target = script.target or f"{script.name}.py"
            words = ("-m", target) if script.launcher == "module" else (target,)
            yield Subject(
                script.name, script.rules, words, script.folder, (), script.prepare, False, script.name in REPAIRS
            )


def measure(subject: Subject, keep: Path, turns: int, *, compiling: bool) -> None:
    """Record a script and time it as it is, repaired, and with the first change that a patch makes; keep both."""
    with tempfile.TemporaryDirectory(prefix="ranges-") as folder:
        scratch = Path(folder)
        capture = keep / f"{subject.name}.capture"
        _trace(subject, subject.project(scratch, repaired=False), capture)
        diagnosis = analyze_paths([capture])
        patched = _patchable(diagnosis, compiling=compiling)
        variants: dict[str, Runner] = {"planted": _runner(subject, scratch, diagnosis, patched)}
        if subject.has_repair:
            variants["repaired"] = _runner(subject, scratch, diagnosis, None, repaired=True)
        if patched is not None:
            variants["patch"] = _runner(subject, scratch, diagnosis, patched)
        steps: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
        notes: dict[str, str] = {}
        for turn in range(turns):
            names = list(variants) if turn % 2 == 0 else list(reversed(variants))
            for name in names:
                ids = (patched.id,) if patched is not None and name == "patch" else ()
                run = variants[name].time(ids, timeout_s=TIMEOUT_S)
                if run.step_ns and (name != "patch" or run.applied):
                    steps[name].append(run.step_ns)
                else:
                    notes[name] = run.failure or "the patch was not applied"
    kept = {"patch": patched.id if patched is not None else "", "steps_ns": steps, "notes": notes}
    (keep / f"{subject.name}.runs.json").write_text(json.dumps(kept), encoding="utf-8")


def rows_of(subject: Subject, keep: Path, quantile: float = 0.5) -> list[RangeRow]:
    """Return what the kept runs show beside the ranges that are stated of the kept recording now."""
    kept = json.loads((keep / f"{subject.name}.runs.json").read_text(encoding="utf-8"))
    diagnosis = analyze_paths([keep / f"{subject.name}.capture"])
    by_id = {p.id: p for p in diagnosis.prescriptions}
    mine = next((p for p in diagnosis.prescriptions if p.rule in subject.rules and _predicts(p)), None)
    found = []
    for made, prescription in (("repaired", mine), ("patch", by_id.get(kept["patch"]))):
        planted, changed = kept["steps_ns"]["planted"], kept["steps_ns"].get(made)
        if prescription is None or not _predicts(prescription) or not planted or not changed:
            continue
        found.append(
            RangeRow(
                subject.name,
                prescription.id,
                made,
                float(np.median([np.quantile(run, quantile) for run in planted])) / 1e6,
                stated_range(diagnosis, prescription),
                _saving(prescription, planted, changed, quantile),
                diagnosis.cpu_wait or 0.0,
            )
        )
    return found


def _saving(prescription: Prescription, planted: Steps, changed: Steps, quantile: float) -> Saving:
    """Return what runs show: by the mean step where the change is for what comes in some steps only."""
    if prescription.mean_step_ns is not None:
        return mean_saving(planted, changed)
    return usual_saving(planted, changed, quantile)


def _predicts(prescription: Prescription) -> bool:
    return prescription.predicted_step_ns is not None or prescription.mean_step_ns is not None


def _patchable(diagnosis: Diagnosis, *, compiling: bool) -> Prescription | None:
    """Return the first change that a patch makes without a device."""
    for p in diagnosis.prescriptions:
        patch = patch_of(p.id)
        fits = patch is not None and not patch.needs_gpu and (compiling or not patch.compiles)
        if fits and _predicts(p) and not p.arguments.get("by_hand"):
            return p
    return None


def _runner(
    subject: Subject, scratch: Path, diagnosis: Diagnosis, patched: Prescription | None, *, repaired: bool = False
) -> Runner:
    words = subject.repaired if repaired else subject.words
    cwd = subject.project(scratch, repaired=repaired)
    arguments = {patched.id: dict(patched.arguments)} if patched is not None else {}
    timed = min(max(int(TIMED_S * 1e9 / max(diagnosis.step_ns, 1.0)), TIMED[0]), TIMED[1])
    name = f"runs-{'repaired' if repaired else 'planted'}-{patched.id if patched else 'none'}"
    return Runner(
        Command(words, cwd, subject.launcher),
        scratch / f"{name}-{len(list(scratch.iterdir()))}",
        cwd_mode="same",
        arguments=arguments,
        warm_up=WARM_UP,
        timed=timed,
    )


def _trace(subject: Subject, folder: Path, capture: Path) -> None:
    shutil.rmtree(capture, ignore_errors=True)
    launch = list(subject.launcher) or [sys.executable]
    command = [*launch, "-m", "diagnose", "trace", "-q", "--capture", str(capture.absolute()), *subject.words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")


def run_ranges(fixtures: Sequence[Pair], options: argparse.Namespace) -> int:
    """Measure what is not kept yet, and print the table; return 1 below the bar, 3 where the time was over before."""
    keep: Path = options.keep or Path(tempfile.mkdtemp(prefix="ranges-"))
    keep.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    rows: list[RangeRow] = []
    for subject in subjects(fixtures, catalogue_of(FOLDER).SCRIPTS):
        if options.only and subject.name not in options.only:
            continue
        if not (keep / f"{subject.name}.runs.json").exists():
            if time.monotonic() > ends:
                print(f"evaluate: no time is left for {subject.name}", file=sys.stderr)
                return UNFINISHED
            print(f"evaluate: {subject.name}", file=sys.stderr, flush=True)
            measure(subject, keep, options.turns, compiling=options.compiling)
        rows += rows_of(subject, keep, options.quantile)
    text = f"{summary(rows)}\n\n{table(rows)}\n"
    print(text)
    if options.write:
        write_section(options.write, text)
    return 0 if holds(rows) else 1


def section_of(page: Path) -> str:
    """Return the section about ranges of a page, which its other part is written without; "" where there is none."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, heading, section = text.partition(f"\n{HEADING}\n")
    return heading + section


def write_section(page: Path, text: str) -> None:
    """Write the rows into the page's section, between its first words and what stands below a further heading."""
    section = section_of(page)
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    before = before[: len(before) - len(section)]
    words, _, rest = section.removeprefix(f"\n{HEADING}\n").partition(RESULT)
    _, heading, below = rest.partition("\n### ")
    page.write_text(f"{before}\n{HEADING}\n{words}{RESULT}\n{text}{heading}{below}", encoding="utf-8")
