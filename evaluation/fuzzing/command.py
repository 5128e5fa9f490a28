"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fuzzing import worker
from fuzzing.cases import KINDS, Case, Inputs, make
from fuzzing.minimize import minimized
from fuzzing.pool import KILLED_AFTER_S, Setting, run_all
from fuzzing.running import base_reports
from fuzzing.summary import Summary
from fuzzing.worker import Result

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
RECORDED = (ROOT.parent / "shared" / "traces", ROOT.parent / "shared" / "traces_second")
SHARES = {"trace": 0.5, "capture": 0.3, "report": 0.2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run mutants; return 1 where anything is wrong."""
    options = _parser().parse_args(argv)
    folders = options.traces if options.traces is not None else [folder for folder in RECORDED if folder.is_dir()]
    if options.module:
        importlib.import_module(options.module)
    if options.worker:
        return worker.serve(options.seed, folders)
    if options.replay:
        asked = [{"file": str(file.resolve()), "index": index} for index, file in enumerate(options.replay)]
    else:
        asked = _asked(options.count, options.kind, options.first)
    summary = Summary(options.seed, options.jobs)
    started = time.monotonic()
    saved: set[tuple[str, str]] = set()
    setting = Setting(options.seed, options.jobs, folders, options.limit)
    for done, result in enumerate(run_all(asked, setting), 1):
        summary.add(result)
        if options.record and not result.problems:
            _record(options.replay[result.index], result)
        new = [problem for problem in result.problems if problem not in saved]
        if new and options.save and result.kind != "file":
            saved.update(new)
            _save(options, folders, result)
        if done % 1000 == 0 and not options.quiet:
            print(f"{done} of {len(asked)}, {len(summary.defects)} defects", flush=True)
    summary.seconds = time.monotonic() - started
    print("\n".join(summary.lines()))
    if options.table:
        page = options.table.read_text(encoding="utf-8")
        options.table.write_text(summary.write_table(page), encoding="utf-8")
    return int(summary.failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evaluation/fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000, help="mutants of all kinds together")
    parser.add_argument("--first", type=int, default=0, help="index of the first mutant of each kind")
    parser.add_argument("--kind", choices=KINDS, help="one kind of input only")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=KILLED_AFTER_S, help="seconds after which a mutant is killed")
    parser.add_argument("--traces", type=Path, action="append", help="folders of recorded traces; '' for none")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the first mutant of every defect there")
    parser.add_argument("--minimize", action="store_true", help="make saved mutants small first")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run saved mutants instead")
    parser.add_argument("--record", action="store_true", help="note the exit codes of sound mutants as expected ones")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the summary into a page")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--import", dest="module", default="", help=argparse.SUPPRESS)
    return parser


def _asked(count: int, kind: str | None, first: int) -> list[dict[str, object]]:
    """Return the cases to run, the kinds mixed evenly."""
    shares = {kind: 1.0} if kind else SHARES
    numbers = {name: round(count * share) for name, share in shares.items()}
    listed = [
        (index / number, {"kind": name, "index": first + index})
        for name, number in numbers.items()
        for index in range(number)
    ]
    return [asked for _, asked in sorted(listed, key=lambda item: item[0])]


def _save(options: argparse.Namespace, folders: Sequence[Path], result: Result) -> None:
    """Write the mutant, made small where asked, and print how to run it again."""
    options.save.mkdir(parents=True, exist_ok=True)
    case = make(options.seed, result.kind, result.index, _inputs(folders))
    if options.minimize and result.problems[0][0] not in ("hang", "process ended", "too slow", "too much memory"):
        case = minimized(case, result.problems[0])
    path = options.save / f"{result.kind}-{options.seed}-{result.index}.json"
    kept = Case(case.argv, case.files, (*case.what, *(": ".join(problem) for problem in result.problems)))
    path.write_text(kept.to_json(), encoding="utf-8")
    print(f"saved: evaluation/fuzz --replay {path}", flush=True)


def _record(file: Path, result: Result) -> None:
    case = Case.from_json(file.read_text(encoding="utf-8"))
    file.write_text(replace(case, expect={"code": result.code}).to_json(), encoding="utf-8")


_made: dict[tuple[Path, ...], Inputs] = {}


def _inputs(folders: Sequence[Path]) -> Inputs:
    key = tuple(folders)
    if key not in _made:
        _made[key] = Inputs.of(folders, base_reports(worker.scratch_folder()))
    return _made[key]
