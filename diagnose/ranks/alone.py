"""Work that one rank does alone while the others wait for it, by the samples of every step of the run.

Steps take all ranks equally long. Lines at which one rank spends time and no other rank does are therefore what the
others spend more time waiting for, at the line of a collective. Neither has to lie in the recorded window, and no
common clock is needed: what comes once in a hundred steps has its share of each rank's samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from diagnose.model.limits import MAJORITY
from diagnose.model.line_calls import MEETS
from diagnose.model.locations import Where
from diagnose.ranks.lateness import MAX_BY_CHANCE
from diagnose.ranks.profile import COMMUNICATION, RankProfile, SampledLine

_Place: TypeAlias = tuple[str, int, str]  # file, line, function


class LoneWork(NamedTuple):
    """What one rank does alone; ``rank`` is an index in the list of ranks."""

    rank: int
    lines: tuple[Where, ...]  # the outermost lines that no other rank runs, the one that takes longest first
    callers: frozenset[tuple[str, int]]  # file and line of what calls them
    waiting: tuple[Where, ...]  # where the others wait for it, the longest wait first
    waited_share: float  # of a step, that each of the others waits for it
    work_share: float  # of a step, that it takes


def lone_work(ranks: Sequence[RankProfile]) -> LoneWork | None:
    """Return the work of one rank alone for which all others wait, None where there is none.

    Where other ranks run lines of their own as well, ranks differ in what they are for, as stages of a pipeline do.
    """
    if len(ranks) < 2 or any(not p.run_lines for p in ranks):
        return None
    lines = [_by_place(p) for p in ranks]
    alone = [_alone(lines, i, p) for i, p in enumerate(ranks)]
    shares = [
        sum(p.run_lines[row].within for row in rows) / p.run_samples for p, rows in zip(ranks, alone, strict=True)
    ]
    rank = max(range(len(ranks)), key=lambda i: shares[i])
    share, others = shares[rank], [i for i in range(len(ranks)) if i != rank]
    if not share or max(shares[i] for i in others) >= MAJORITY * share:
        return None
    mine = ranks[rank]
    waits = [_waits(ranks[i], lines[i], lines[rank], mine.run_samples) for i in others]
    waited_share = min(sum(each.values()) for each in waits)
    if waited_share < MAJORITY * share:  # the others do as much besides: they do not wait
        return None
    at = {place: sum(each.get(place, 0.0) for each in waits) for place in set().union(*waits)}
    named = {place: line for i in others for place, line in lines[i].items()}
    roots = sorted((mine.run_lines[row] for row in alone[rank]), key=lambda line: -line.within)
    return LoneWork(
        rank,
        tuple(map(_where, roots)),
        frozenset((line.file, line.line) for row in alone[rank] for line in _callers(mine, row)),
        tuple(_where(named[place]) for place in sorted(at, key=lambda place: -at[place])),
        min(waited_share, share),
        share,
    )


def _alone(lines: Sequence[Mapping[_Place, SampledLine]], rank: int, p: RankProfile) -> list[int]:
    """Return the rows of the outermost lines that a rank alone was seen at, more often than by chance."""
    others = [each for i, each in enumerate(lines) if i != rank]
    rows = {
        row
        for row, line in enumerate(p.run_lines)
        if not any(_place(line) in each for each in others)
        and len(lines) ** (1.0 - line.within) <= MAX_BY_CHANCE
        and not MEETS.search(line.code)
    }
    return sorted(row for row in rows if p.run_lines[row].caller not in rows)


def _by_place(p: RankProfile) -> dict[_Place, SampledLine]:
    return {_place(line): line for line in p.run_lines}


def _place(line: SampledLine) -> _Place:
    return line.file, line.line, line.function


def _waits(
    p: RankProfile, lines: Mapping[_Place, SampledLine], own: Mapping[_Place, SampledLine], num: int
) -> dict[_Place, float]:
    """Return by how much more of its step than the rank of ``own`` a rank spends at each line that meets the others.

    Such a line calls a collective, or the recorded window shows that it waits for one.
    """
    waited = {(each.file, each.line) for each in p.lines if each.cause == COMMUNICATION}
    more = {
        place: line.at / p.run_samples - (own[place].at / num if place in own else 0.0)
        for place, line in lines.items()
        if MEETS.search(line.code) or place[:2] in waited
    }
    return {place: share for place, share in more.items() if share > 0}


def _callers(p: RankProfile, row: int) -> tuple[SampledLine, ...]:
    """Return the lines that call one, the innermost first."""
    chain = [p.run_lines[row].caller]
    for _ in p.run_lines:
        chain.append(p.run_lines[chain[-1]].caller if chain[-1] >= 0 else -1)
    return tuple(p.run_lines[each] for each in takewhile(lambda each: each >= 0, chain))


def _where(line: SampledLine) -> Where:
    return Where(line.file, line.line, line.function, code=line.code or None)
