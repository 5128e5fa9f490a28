"""Cases scored in one process or several, and the tables written."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulation.cases import draw_case
from simulation.scoring import Score, score
from simulation.tables import report

__all__ = ["run_simulated", "scores_of"]

EVERY_DIALECT = 25  # one case in so many is written in every dialect
MARKS = ("<!-- simulated -->", "<!-- /simulated -->")


def run_simulated(num_cases: int, seed: int, *, jobs: int = 1, table: Path | None = None, verbose: bool = False) -> int:
    """Score ``num_cases`` cases, print the tables, and write them between the marks of ``table``."""
    scores = scores_of(num_cases, seed, jobs=jobs)
    if verbose:
        print("\n".join(_line(one) for one in scores))
    lines = report(scores, seed)
    print("\n".join(lines))
    if table:
        before, rest = table.read_text(encoding="utf-8").split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        text = "\n".join([before + MARKS[0], "", *lines, "", MARKS[1] + after])
        table.write_text(text, encoding="utf-8")
    failed = [one.name for one in scores if one.answer.error or one.broken]
    if failed:
        print(f"failed or broken: {', '.join(failed)}")
    return 1 if failed else 0


def scores_of(num_cases: int, seed: int, *, jobs: int = 1) -> list[Score]:
    """Return the scores of the first cases of a seed."""
    numbers = [(seed, index) for index in range(num_cases)]
    if jobs == 1:
        return [_score(number) for number in numbers]
    with ProcessPoolExecutor(min(jobs, os.cpu_count() or 1)) as pool:
        return list(pool.map(_score, numbers, chunksize=4))


def _score(number: tuple[int, int]) -> Score:
    seed, index = number
    return score(draw_case(seed, index), all_dialects=index % EVERY_DIALECT == EVERY_DIALECT - 1)


def _line(one: Score) -> str:
    """Return a case in one line, for looking at disagreements."""
    mark = "right" if one.right else "nature" if one.by_nature else "WRONG"
    best = f"{one.best} {one.best_saving:.0%}" if one.best else "none"
    wastes = ", ".join(f"{w.kind} {w.saving:.1%} claimed {w.claimed:.1%}" for w in one.wastes)
    alarms = ", ".join(f"{c.rule} {c.middle:.0%}" for c in one.false_alarms)
    said = f"{one.answer.verdict} / {one.answer.dominant} {one.answer.error}"
    head = f"{one.name:8}{mark:7}{one.family:14}{one.dialect:22}x{one.ranks} {one.step_ns / 1e6:8.2f} ms {one.limit:7}"
    return f"{head}best {best:28} said {said:40} [{wastes}]{f' FALSE: {alarms}' if alarms else ''}"
