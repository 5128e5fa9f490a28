"""Traces every script of evaluation/third_party_scripts and scores what was found against what is true about it.

For each script: are the steps those of its author, are its phases told apart, is the dominant finding the planted one,
does it name the exact line, does the printed diff apply and does the changed script still run; with ``--prove``, was a
change tried, did it save what the report states, and did none make steps longer. Exits 1 where steps are not the
author's, where a diff does not apply or breaks the script, which no load of the machine excuses, and where a smaller
share of the rows than ``--bar`` is right throughout.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "third_party_scripts"))
from catalogue import FOLDER, SCRIPTS, Script  # the folder is no package: its files are scripts
from third_party_page import COLUMNS, Row, page
from third_party_proof import OPEN, RIGHT, WRONG, score_proof
from yardstick.answer import NoAnswerError
from yardstick.processes import ended, last_line

TRACE_SECONDS = 900  # a machine that does something else beside takes several times as long
MINOR = 0.1  # of the step: where nothing is planted, less may be claimed (torch's own default Adam loops on a CPU)
MIN_PHASE = 0.01  # share of the run: less is setting up
ALWAYS = frozenset({"training", "loading", "other"})
RUNS_SECONDS = 12  # a changed script runs where it is still at work, or ended well, after so long
CERTAIN = frozenset({"steps", "applies", "runs"})  # columns that do not rest on times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a script's name; may be repeated")
    parser.add_argument("--pick", type=int, metavar="N", help="N of the scripts, drawn at random")
    parser.add_argument("--seed", default="0", help="what the draw depends on (default: 0)")
    parser.add_argument("--prove", action="store_true", help="run diagnose prove too, and note what it tried")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there; sections below it stay")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep rows there, and take those that are there")
    parser.add_argument("--bar", type=float, default=0.0, help="the share of rows that must be right (default: 0)")
    options = parser.parse_args()
    rows = []
    for script in _chosen(options.only, options.pick, options.seed):
        kept = options.keep / f"{script.name}.json" if options.keep else None
        if kept is not None and kept.exists():
            row = Row(**json.loads(kept.read_text(encoding="utf-8")))
        else:
            row = score(script, options.prove, options.keep)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(asdict(row)), encoding="utf-8")
        rows.append(row)
        print(_line(row), flush=True)
    text = page(rows)
    if options.write:
        options.write.write_text(text + _kept(options.write), encoding="utf-8")
    print(text)
    broken = [row.name for row in rows if set(row.wrong) & CERTAIN]
    right = sum(not row.wrong for row in rows)
    return 1 if broken or right < options.bar * len(rows) else 0


def _kept(page: Path) -> str:
    """Return the sections below the table of an earlier page: they are written by hand."""
    earlier = page.read_text(encoding="utf-8") if page.exists() else ""
    _, heading, sections = earlier.partition("\n## ")
    return heading + sections


def _chosen(only: list[str], number: int | None, seed: str) -> list[Script]:
    scripts = [script for script in SCRIPTS if not only or script.name in only]
    if number is None or number >= len(scripts):
        return scripts
    drawn = set(random.Random(seed).sample(range(len(scripts)), number))
    return [script for place, script in enumerate(scripts) if place in drawn]


def score(script: Script, prove: bool = False, keep: Path | None = None) -> Row:
    """Trace a script in a copy of the folder and return its row."""
    blank = Row(script.name, script.waste)
    if script.needs and importlib.util.find_spec(script.needs) is None:
        return _with(blank, remark=f"{script.needs} is not installed")
    with tempfile.TemporaryDirectory(prefix="third-party-") as scratch:
        project = Path(scratch, "project")
        shutil.copytree(FOLDER, project, ignore=shutil.ignore_patterns("__pycache__", "catalogue.py", "ruff.toml"))
        folder = project / script.folder
        if script.prepare:
            subprocess.run([sys.executable, str(project / script.prepare)], check=True)
        capture, result = Path(scratch, "capture"), Path(scratch, "result.json")
        begun = time.perf_counter()
        failure = _run(
            [*_tracing(script), "-q", "--capture", str(capture), "-o", str(result), *_target(script)], folder
        )
        seconds = time.perf_counter() - begun
        if not result.exists():
            return _with(blank, remark=f"no diagnosis: {failure}", steps=WRONG, dominant=WRONG)
        diagnosis = json.loads(result.read_text(encoding="utf-8"))
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(result, keep / f"{script.name}.diagnosis.json")
        columns = _steps(script, capture, diagnosis) | _phases(script, diagnosis)
        columns |= _finding(script, diagnosis, folder) | _advice(script, diagnosis) | _diff(script, diagnosis, folder)
        if prove:
            columns |= _proof(
                script, folder, keep / f"{script.name}.proof.json" if keep else Path(scratch, "proof.json")
            )
    remarks = "; ".join(str(value) for key, value in columns.items() if key.startswith("remark_") and value)
    values = {key: value for key, value in columns.items() if not key.startswith("remark_")}
    return _with(blank, remark=remarks, answer_s=seconds, **values)


def _with(row: Row, **values: Any) -> Row:
    return Row(**{field.name: getattr(row, field.name) for field in fields(row)} | values)


def _tracing(script: Script) -> list[str]:
    python = sys.executable
    if script.launcher == "torchrun":
        launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "diagnose"]
        return [*launch, "trace"]
    return [python, "-m", "diagnose", "trace"]


def _target(script: Script) -> list[str]:
    module = ["-m"] if script.launcher == "module" else []
    return [*module, script.target or f"{script.name}.py", *script.args]


def _run(command: list[str], folder: Path, seconds: float = TRACE_SECONDS) -> str:
    """Run a command; return the last line of its errors, or that it took too long."""
    try:
        run = ended(command, folder, seconds)
    except NoAnswerError as reason:
        return str(reason)
    return "" if run.returncode == 0 else last_line(run)


def _steps(script: Script, capture: Path, diagnosis: Mapping[str, Any]) -> dict[str, str]:
    """Compare the events between the first step's begin and the last one's end with what a step of the script has."""
    traces = sorted(capture.rglob("rank0.light.pt.trace.json.gz")) or sorted(capture.rglob("*light*trace.json.gz"))
    if not traces:
        return {"steps": WRONG, "remark_steps": "no trace of the timing window"}
    with gzip.open(traces[0], "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if "dur" in event]
    steps = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    if not steps:
        return {"steps": WRONG, "remark_steps": "no steps are marked"}
    start, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    num, off = len(steps), []  # recorded: the steady ones of them are analysed
    for name, per_step in script.per_step.items():
        seen = sum(event["name"] == name and start <= event["ts"] < end for event in events)
        if abs(seen - per_step * num) > per_step:  # a step may be cut at either end
            off.append(f"{seen} × {name} in {num} steps, not {per_step} each")
    return {"steps": WRONG if off else RIGHT, "remark_steps": "; ".join(off), "step_ms": diagnosis["step_ms"]}


def _phases(script: Script, diagnosis: Mapping[str, Any]) -> dict[str, str]:
    shares = diagnosis.get("run", {}).get("phases")
    if not shares:
        return {"phases": OPEN}
    named = {name for name, share in shares.items() if share >= MIN_PHASE and name not in ALWAYS}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    right = named == set(script.phases)
    return {"phases": RIGHT if right else WRONG, "remark_phases": "" if right else f"phases: {listed}"}


def _finding(script: Script, diagnosis: Mapping[str, Any], folder: Path) -> dict[str, str]:
    dominant = diagnosis["dominant"] or "none"
    places = [finding["where"] for finding in diagnosis["findings"] if finding["rule"] == dominant]
    place = places[0][0] if places and places[0] else None
    known = [str(place[key]) for key in ("file", "line") if place[key]] if place and place["file"] else []
    at = ":".join(known)
    minor = not script.rules and _largest_saving(diagnosis) < MINOR
    right = minor or dominant in (script.rules or ("none",))
    columns = {"dominant": RIGHT if right else WRONG, "found": f"{dominant} {at}".strip()}
    if not script.lines:
        return columns
    wanted = {f"{file}:{line}" for file, text in script.lines for line in _lines_with(folder, file, text)}
    named = right and any(at.endswith(line) for line in wanted)
    return columns | {"line": RIGHT if named else WRONG}


def _largest_saving(diagnosis: Mapping[str, Any]) -> float:
    """Return the share of the step that the best prescription claims to save, in the middle of its range."""
    return max((sum(p["saves_ms"]) / 2 / diagnosis["step_ms"] for p in diagnosis["prescriptions"]), default=0.0)


def _lines_with(folder: Path, file: str, text: str) -> list[int]:
    lines = (folder / file).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    if not found:
        raise SystemExit(f"third_party: {file} has no line with {text!r}")
    return found


def _advice(script: Script, diagnosis: Mapping[str, Any]) -> dict[str, str]:
    """Look for changes that must not be prescribed, and for anything where nothing is wasted."""
    wrong = [p["id"] for p in diagnosis["prescriptions"] if p["id"] in script.wrong]
    return {"advice": WRONG if wrong else RIGHT, "remark_advice": f"prescribes {', '.join(wrong)}" if wrong else ""}


def _diff(script: Script, diagnosis: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Apply the diff of each prescription to the project as it is and run the result."""
    diffs = [(p["id"], p["diff"]) for p in diagnosis["prescriptions"] if p.get("diff")]
    if not diffs:
        return {}
    columns = {"applies": RIGHT, "runs": RIGHT}
    remarks = []
    for change, diff in diffs:
        with tempfile.TemporaryDirectory(prefix="third-party-") as scratch:
            copy = Path(scratch, "project")
            shutil.copytree(FOLDER if script.folder == "." else folder.parent, copy)
            inside = copy / (script.folder if script.folder == "." else folder.name)
            applied = subprocess.run(
                ["git", "apply", "-p1", "-"], cwd=inside, input=diff, capture_output=True, text=True, check=False
            )
            if applied.returncode:
                columns |= {"applies": WRONG, "runs": WRONG}
                remarks.append(f"{change}: {applied.stderr.strip().splitlines()[-1]}")
                continue
            failure = _run([sys.executable, *_launched(script), *_target(script)], inside, RUNS_SECONDS)
            if failure and not failure.startswith("more than"):
                columns["runs"] = WRONG
                remarks.append(f"{change}: {failure}")
    return columns | {"remark_diff": "; ".join(remarks)}


def _launched(script: Script) -> list[str]:
    if script.launcher != "torchrun":
        return []
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def _proof(script: Script, folder: Path, result: Path) -> dict[str, str]:
    """Run diagnose prove and score what it measured."""
    command = [sys.executable, "-m", "diagnose", "prove", "--yes", "--budget", script.budget, "-q", "-o", str(result)]
    if launched := _launched(script):
        command += ["--launcher", shlex.join([sys.executable, *launched])]
    failure = _run([*command, *_target(script)], folder, 600)
    if not result.exists():
        return {"prove": WRONG, "remark_prove": f"prove: {failure}"}
    return score_proof(json.loads(result.read_text(encoding="utf-8")), failure)


def _line(row: Row) -> str:
    marks = " ".join(f"{column}={getattr(row, column)}" for column in COLUMNS)
    return f"{row.name}: {marks} | {row.answer_s:.1f} s | {row.found} | {row.remark}"


if __name__ == "__main__":
    sys.exit(main())
