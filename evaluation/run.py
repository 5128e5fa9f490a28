"""The open yardstick: lets tools answer about cases with a truth, judges the answers, and writes the page.

    scripts/python evaluation/run.py --install            the other tools, each in its own environment
    scripts/python evaluation/run.py --tool diagnose --tool hta --set traces-1
    scripts/python evaluation/run.py --recordings 20 --scripts 8 --keep build/answers --write PAGE

Without --tool all tools answer, without --set all sets are asked. --recordings and --scripts draw a slice, the same
one for each tool. Answers that are in the folder of --keep are not asked for again. Exits with 1 if a case is not what
it was when its truth was fixed.

A sealed set is answered with --part sealed --keep FOLDER, and its truth is not read. --open DATE scores these answers,
unpacks the truth, writes each first answer of diagnose into it, and dates the set.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Case
from yardstick.environments import FOLDER, install, python_of
from yardstick.firsts import judged_firsts, write_firsts
from yardstick.page import numbered, page, table
from yardstick.readers import ROOT
from yardstick.scoring import Mark, judge
from yardstick.sets import HASHES, MANIFEST, Set, changed, drawn, fix, open_set, read_sets, seal_set
from yardstick.sheet import read_sheet, with_judgements, write_sheet
from yardstick.tools import TOOLS, Tool

JUDGED = ROOT / "evaluation" / "judged.csv"


def main() -> int:
    options = _options()
    tools = [TOOLS[name] for name in options.tool or TOOLS]
    every = read_sets(options.manifest, options.hashes)
    if _prepared(tools, every, options):
        return 0
    chosen = [each for each in every if each.part == options.part and (not options.set or each.name in options.set)]
    if not chosen:
        print(f"no {options.part} set is registered")
        return 0
    if options.list:
        for case in (case for each in chosen for case in each.cases):
            print(f"{case.id:40} {case.kind:10} {case.missing}")
        return 0
    cases = _slice([case for each in chosen for case in each.cases], options)
    is_open = options.part == "development" or bool(options.open)
    if not is_open and not options.keep:
        raise SystemExit("a sealed set needs --keep FOLDER: its first answers are scored when it is opened")
    with tempfile.TemporaryDirectory() as made:
        marks = []
        for tool, case in ((tool, case) for tool in tools for case in cases if case.kind in tool.kinds):
            asked = _kept(tool, case, options.keep or Path(made), options.peers)
            if is_open:
                marks.append(_mark(tool, case, asked))
            said = _said(marks[-1]) if is_open else asked["failed"] or "answered"
            print(f"{tool.name:12} {case.id:36} {asked['seconds']:7.1f} s  {said}", flush=True)
    if not is_open:
        print("the answers are kept; the truth stays sealed until --open DATE")
        return 0
    return _finished(marks, cases, chosen, options)


def _prepared(tools: Sequence[Tool], every: Sequence[Set], options: argparse.Namespace) -> bool:
    """Do what comes before any answer, and return whether that was asked for."""
    if options.install:
        for tool in tools:
            print(f"run: installing {tool.name}", file=sys.stderr, flush=True)
            install(tool, options.peers)
    if options.fix:
        fix(next(each for each in every if each.name == options.fix), options.hashes)
    if options.seal:
        seal_set(next(each for each in every if each.name == options.seal), every)
    return bool(options.install or options.fix or options.seal)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="may be repeated (default: all)")
    parser.add_argument("--set", action="append", metavar="NAME", help="of manifest.json; may be repeated")
    parser.add_argument("--part", choices=("development", "sealed"), default="development")
    parser.add_argument(
        "--open", metavar="DATE", help="read the truth of the sealed sets, which ends their being sealed"
    )
    parser.add_argument("--only", action="append", metavar="CASE", help="the name of a case; may be repeated")
    parser.add_argument("--recordings", type=int, metavar="N", help="draw so many recordings")
    parser.add_argument("--scripts", type=int, metavar="N", help="draw so many scripts")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep answers there, and take those that are there")
    parser.add_argument("--peers", type=Path, default=FOLDER, metavar="FOLDER", help="of the tools' environments")
    parser.add_argument(
        "--sheet", type=Path, default=JUDGED, help="what readers judged; open rows are added with --ask"
    )
    parser.add_argument("--ask", action="store_true", help="add what rules cannot judge to the sheet")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--list", action="store_true", help="print the cases, and end")
    parser.add_argument("--install", action="store_true", help="make the environments of the tools, and end")
    parser.add_argument("--fix", metavar="SET", help="write the hashes of a new set, and end")
    parser.add_argument("--seal", metavar="SET", help="pack the truth of a sealed set, and end")
    parser.add_argument(
        "--manifest", type=Path, default=MANIFEST, metavar="FILE", help="of the sets; their hashes are next to it"
    )
    options = parser.parse_args()
    if options.open and (options.only or options.recordings is not None or options.scripts is not None):
        parser.error("--open is for whole sets: a slice would leave cases without a first answer")
    options.hashes = options.manifest.with_name(HASHES.name)
    options.part = "sealed" if options.open else options.part
    return options


def _slice(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """Return the cases that are asked about."""
    if options.only:
        return [case for case in cases if case.name in options.only]
    if options.recordings is None and options.scripts is None:
        return [case for case in cases if not case.missing]
    numbers = {"recording": options.recordings or 0, "script": options.scripts or 0}
    return [
        case
        for kind, number in numbers.items()
        for case in drawn([each for each in cases if each.kind == kind], number, options.seed)
    ]


def _kept(tool: Tool, case: Case, keep: Path, peers: Path) -> dict[str, Any]:
    """Return what a tool printed about a case, the seconds it took, or why there is no answer."""
    path = keep / tool.name / f"{case.set}.{case.name}.json"
    if path.is_file():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    asked = {"raw": "", "failed": "", "seconds": 0.0}
    python = python_of(tool, peers)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="yardstick-") as folder:
        try:
            asked["raw"] = tool.ask(python, case.subject, Path(folder))
        except NoAnswerError as reason:
            asked["failed"] = str(reason).replace(folder, "FOLDER")
    asked["seconds"] = round(time.perf_counter() - begun, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asked), encoding="utf-8")
    return asked


def _said(mark: Mark) -> str:
    """Return an answer and how rules judge it, in a line."""
    judged = ", ".join(f"{part} {word}" for part in ("cause", "line", "change") if (word := getattr(mark, part)))
    answer = mark.answer
    places = ", ".join(f"{file}:{first}" for file, first, _ in answer.places)
    return f"[{judged}] {mark.failed or answer.cause or 'nothing'} | {places} | {answer.change}"


def _finished(marks: list[Mark], cases: Sequence[Case], chosen: Sequence[Set], options: argparse.Namespace) -> int:
    """Open sealed sets, print the table, and write sheet and page."""
    other = changed(cases, options.hashes)
    if other:
        print(f"not as they were when their truth was fixed: {', '.join(other)}")
    if options.open and not other:
        for each in chosen:
            open_set(each.name, options.open, options.manifest)
            write_firsts(each.truth, [mark for mark in marks if mark.case.set == each.name])
    rows = read_sheet(options.sheet)
    marks = with_judgements(marks, rows)
    if options.ask or options.open:
        print(f"{write_sheet(options.sheet, marks, rows)} answers wait for a reader in {options.sheet}")
    for kind in ("recording", "script"):
        if mine := [mark for mark in marks if mark.case.kind == kind]:
            print(f"\n{kind}s\n", *table(mine), sep="\n")
    if options.write:
        firsts = judged_firsts(read_sheet(options.sheet), options.manifest)
        text = page(marks, read_sets(options.manifest, options.hashes), firsts, _slices(cases, options))
        options.write.write_text(text, encoding="utf-8")
    return 1 if other else 0


def _mark(tool: Tool, case: Case, asked: dict[str, Any]) -> Mark:
    failed = asked["failed"]
    try:
        answer = Answer() if failed else tool.read(asked["raw"])
    except NoAnswerError as reason:
        answer, failed = Answer(), str(reason)
    return judge(tool, case, answer, asked["seconds"], failed)


def _slices(cases: Sequence[Case], options: argparse.Namespace) -> str:
    drawn_by = "" if options.recordings is None and options.scripts is None else f", drawn by seed {options.seed}"
    counts = [numbered(kind, sum(case.kind == kind for case in cases)) for kind in ("recording", "script")]
    return f"{' and '.join(counts)} of the development part{drawn_by}."


if __name__ == "__main__":
    sys.exit(main())
