"""What the ranks of a job show together, from their profiles alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.ranks.lateness import Lateness, Times, Waits, lateness_of, times_of, waits_of
from diagnose.ranks.links import CollectiveTimes, SlowGroup, collective_times, imbalance, slow_group
from diagnose.ranks.matching import Matches, match_collectives
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.ranks.reasons import Reason, reason_of, reason_of_turns
from diagnose.ranks.usable import listed, usable

__all__ = ["Comparison", "compare_ranks"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ranks that could be compared, and what was found; indices are those of ``ranks``."""

    ranks: tuple[RankProfile, ...]
    notes: tuple[str, ...]  # for `trust`
    matches: Matches
    times: Times
    waits: Waits
    lateness: Lateness
    reason: Reason
    collectives: tuple[CollectiveTimes, ...] = ()
    slow_group: SlowGroup | None = None
    imbalance: float = 1.0  # of all-to-all: the rank that exchanges most, by the mean

    @property
    def step_ns(self) -> float:
        """Return the median step of the ranks."""
        return float(np.median([p.step_ns for p in self.ranks]))

    @property
    def num_steps(self) -> int:
        """Return the number of steps that were compared."""
        return len(self.times.steps)

    def index_of(self, rank: int) -> int | None:
        """Return the index of a rank, None where it was not compared."""
        return next((i for i, p in enumerate(self.ranks) if p.rank == rank), None)

    @property
    def waits_ns(self) -> dict[int, float]:
        """Return for each rank the exposed waiting of a step; ranks without a shared collective are left out."""
        compared = set(self.matches.rank.tolist())
        sums = self.waits.by_step.sum(axis=1)
        return {p.rank: float(sums[i]) / max(p.num_steps, 1) for i, p in enumerate(self.ranks) if i in compared}


def compare_ranks(job: JobProfile) -> Comparison:
    """Compare the ranks of a job; what cannot be compared is named in the notes, the rest is answered."""
    ranks, notes = usable(job)
    matches = match_collectives(ranks)
    times = times_of(ranks)
    waits = waits_of(ranks, matches, times.steps)
    step_ns = float(np.median([p.step_ns for p in ranks])) if ranks else 0.0
    slow = slow_group(ranks, matches, step_ns) if matches.num else None
    lateness = lateness_of(ranks, times, waits, matches)
    reason = Reason()
    if lateness.late:
        reason = reason_of(ranks, times, lateness)
    elif lateness.in_turns:
        reason = reason_of_turns(times, lateness)
    return Comparison(
        ranks,
        (*notes, *_notes(ranks, matches)),
        matches,
        times,
        waits,
        lateness,
        reason,
        collective_times(ranks, matches, waits) if matches.num else (),
        slow,
        imbalance(ranks, matches),
    )


def _notes(ranks: tuple[RankProfile, ...], matches: Matches) -> tuple[str, ...]:
    """State how far the matching can be trusted."""
    if len(ranks) < 2:
        return ()
    if not matches.num:
        return ("The ranks share no collective whose ends agree: nothing is claimed of who waits for whom.",)
    total = matches.num
    found = [
        f"{total:,} collectives were matched across {listed([p.rank for p in ranks])}; the ends of one lie "
        f"{matches.residual_ns / 1e3:,.0f} µs apart (median)."
    ]
    if matches.num_unmatched:
        found.append(f"{matches.num_unmatched:,} collectives are on one rank only and were not compared.")
    if matches.num_disagreeing:
        found.append(
            f"{matches.num_disagreeing:,} collectives have the number of others in their group, but another name or "
            "size, and were not compared."
        )
    if matches.apart:
        found.append(
            f"{listed([ranks[i].rank for i in matches.apart]).capitalize()} share no collective with the others: their "
            "ends lie apart."
        )
    return tuple(found)
