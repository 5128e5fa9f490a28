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
    """Return the work of one rank alone for which all others wait longest, None where there is none."""
    if len(ranks) < 2 or any(not p.run_lines for p in ranks):
        return None
    found = [each for rank in range(len(ranks)) if (each := _alone_on(rank, ranks)) is not None]
    return max(found, key=lambda each: each.waited_share, default=None)


def _alone_on(rank: int, ranks: Sequence[RankProfile]) -> LoneWork | None:
    mine, others = ranks[rank], [p for p in ranks if p is not ranks[rank]]
    known = [_by_place(p) for p in others]
    alone = [
        row
        for row, line in enumerate(mine.run_lines)
        if not any(_place(line) in lines for lines in known)
        and len(ranks) ** (1.0 - line.within) <= MAX_BY_CHANCE
        and not MEETS.search(line.code)
    ]
    roots = [row for row in alone if mine.run_lines[row].caller not in alone]
    if not roots:
        return None
    own = _by_place(mine)
    work_share = sum(mine.run_lines[row].within for row in roots) / mine.run_samples
    waits = [_waits(p, lines, own, mine.run_samples) for p, lines in zip(others, known, strict=True)]
    waited_share = min(sum(each.values()) for each in waits)
    if waited_share < MAJORITY * work_share:  # the others do as much besides: they do not wait
        return None
    at = {place: sum(each.get(place, 0.0) for each in waits) for place in set().union(*waits)}
    named = {place: line for lines in known for place, line in lines.items()}
    return LoneWork(
        rank,
        tuple(map(_where, sorted((mine.run_lines[row] for row in roots), key=lambda line: -line.within))),
        frozenset((line.file, line.line) for row in roots for line in _callers(mine, row)),
        tuple(_where(named[place]) for place in sorted(at, key=lambda place: -at[place])),
        min(waited_share, work_share),
        work_share,
    )


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
