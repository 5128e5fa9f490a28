"""One step of some ranks on one clock: when each begins and ends it, what it waits in collectives, what it loses.

All members leave a collective together, so the clocks of two ranks are laid over each other where the ends of what they
share in this step agree most; ranks that share nothing are joined by others in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.intervals import among
from diagnose.model.job import AlignedCollective, AlignedRank, AlignedStep
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import COMMUNICATION, PHASES, RankProfile
from diagnose.ranks.waits import Waits


def aligned_step(
    ranks: Sequence[RankProfile], matches: Matches, waits: Waits, parts: Mapping[int, str]
) -> AlignedStep | None:
    """Return the middle one of the steps that all ranks recorded, or else all of ``parts``, for these.

    None where there is no such step, or no two of these ranks can be laid over each other in it.

    Args:
        ranks: those that were compared.
        matches: their collectives.
        waits: what each waits in them.
        parts: by the index of each rank to show, what it is: "late", "slowest", "median" or "fastest".
    """
    common = _common_steps(ranks)
    common = common if len(common) else _common_steps([ranks[i] for i in parts])
    if not len(common):
        return None
    number = int(common[len(common) // 2])
    step = matches.column(ranks, "step")
    rows = np.flatnonzero(matches.values([p.step_number for p in ranks], step) == number)
    clock = _clocks(ranks, matches, rows, next(iter(parts)))
    shown = [i for i in parts if not np.isnan(clock[i])]
    if len(shown) < 2:
        return None
    at = {i: int(np.searchsorted(ranks[i].step_number, number)) for i in shown}
    mine = {i: rows[matches.rank[rows] == i] for i in shown}
    begins = [ranks[i].step_begin[at[i]] + clock[i] for i in shown]
    begins += [float((ranks[i].collectives.start[matches.row[mine[i]]] + clock[i]).min(initial=np.inf)) for i in shown]
    zero = min(begins)
    return AlignedStep(
        number,
        tuple(
            AlignedRank(
                rank=ranks[i].rank,
                part=parts[i],
                begin_ns=float(ranks[i].step_begin[at[i]] + clock[i] - zero),
                end_ns=float(ranks[i].step_end[at[i]] + clock[i] - zero),
                causes=_causes(ranks[i], at[i]),
                collectives=_collectives(ranks[i], matches, waits, mine[i], clock[i] - zero),
                num_collectives=len(mine[i]),
            )
            for i in shown
        ),
    )


def _common_steps(ranks: Sequence[RankProfile]) -> Ints:
    """Return the numbers of the steps that all of these ranks recorded."""
    return reduce(lambda one, other: one[among(one, other)], (p.step_number for p in ranks))


def _clocks(ranks: Sequence[RankProfile], matches: Matches, rows: Rows, first: int) -> Floats:
    """Return what to add to each rank's own times to get those of the first; NaN where nothing joins the two.

    ``rows`` are the parts of the step.
    """
    clock = np.full(len(ranks), np.nan)
    clock[first] = 0.0
    end = matches.column(ranks, "end")[rows].astype(np.float64)
    rank, match = matches.rank[rows], matches.match[rows]
    while True:
        ends = end + clock[rank]
        known = ~np.isnan(ends)
        num = np.bincount(match[known], minlength=matches.num)
        mean = np.bincount(match[known], ends[known], minlength=matches.num) / np.maximum(num, 1)
        joined = np.flatnonzero(~known & (num[match] > 0))
        if not len(joined):
            return clock
        order = joined[np.argsort(rank[joined], kind="stable")]
        for part in np.split(order, np.flatnonzero(np.diff(rank[order])) + 1):
            clock[rank[part[0]]] = float(np.median(mean[match[part]] - end[part]))


def _causes(p: RankProfile, step: int) -> tuple[tuple[str, float], ...]:
    """Return what a rank loses most in a step, but for computing and for what it spends in collectives."""
    # Of the step: less is no reason for anything that the picture shows.
    lost = {
        cause: float(row[step])
        for cause, row in zip(p.causes, p.spent, strict=True)
        if cause not in (*PHASES, COMMUNICATION) and row[step] >= 0.01 * p.step_ns
    }
    return tuple(sorted(lost.items(), key=lambda item: -item[1])[:3])


def _collectives(
    p: RankProfile, matches: Matches, waits: Waits, parts: Rows, offset: float
) -> tuple[AlignedCollective, ...]:
    """Return a rank's collectives of the step in the order of their starts: of very many the longest."""
    length = p.collectives.length[matches.row[parts]]
    # Of a rank, the longest: more cannot be told apart in the width of a page.
    longest = parts[np.argsort(-length, kind="stable")[:200]]
    in_order = longest[np.argsort(p.collectives.start[matches.row[longest]], kind="stable")]
    found = []
    for part in in_order.tolist():
        row, kind = int(matches.row[part]), matches.kinds[int(matches.match[part])]
        waiting = float(waits.of_part[part])
        found.append(
            AlignedCollective(
                name=kind.purpose or kind.name,
                start_ns=float(p.collectives.start[row] + offset),
                waiting_ns=waiting,
                transfer_ns=float(p.collectives.length[row]) - waiting,
            )
        )
    return tuple(found)
