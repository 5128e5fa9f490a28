"""What the ranks of a job show together, from their profiles alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.model.job import CollectiveSummary, Job, RankRow, SlowGroup
from diagnose.ranks.alone import LoneWork, lone_work
from diagnose.ranks.late_causes import Reason, reason_of, reason_of_turns
from diagnose.ranks.lateness import Lateness, lateness_of
from diagnose.ranks.links import collective_times, most_exchanged, slow_group
from diagnose.ranks.matching import Matches, match_collectives
from diagnose.ranks.parts import WholeWork, whole_work
from diagnose.ranks.profile import CauseTraits, JobProfile, RankProfile
from diagnose.ranks.reduced_sums import ReducedSums, reduced_sums
from diagnose.ranks.replay import Less, Replayed, replay_steps
from diagnose.ranks.sizes import UnevenSizes, uneven_sizes
from diagnose.ranks.stages import StageTurns, stage_turns
from diagnose.ranks.usable import listed, usable
from diagnose.ranks.waits import Times, Waits, equals_of, roles_of, times_of, waits_of, with_hosts


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
    collectives: tuple[CollectiveSummary, ...] = ()
    slow_group: SlowGroup | None = None
    lone: LoneWork | None = None  # what one rank does alone while the others wait
    uneven: UnevenSizes | None = None  # what late ranks compute more on, if it explains that they are late
    whole: WholeWork | None = None  # what each rank computes for all of them
    sums: ReducedSums | None = None  # which are reduced more often than they are read
    turns: StageTurns | None = None  # of the stages of a pipeline
    exchanged: tuple[int, float] | None = None  # who exchanges most in all-to-alls, and how many times the mean
    without_late: Replayed | None = None  # the steps if the late ranks were as their equals

    @property
    def step_ns(self) -> float:
        """Return the median step of the ranks."""
        return float(np.median([p.step_ns for p in self.ranks]))

    @property
    def saved_ns(self) -> float:
        """Return what a step is shorter if the late ranks were as their equals; of ranks in turns, what is waited.

        It is no more than the latest is late by, mean of all steps: the replay leaves out the first one.
        """
        replayed, late = self.without_late, self.lateness
        # Of the step: beyond it the ranks' own times alone show what a late one costs.
        if replayed is None or abs(replayed.error) > 0.05:
            return late.saved_ns
        return min(replayed.saved_ns, float(np.nanmean(np.maximum(late.excess[late.late[0]], 0.0))))

    @property
    def num_steps(self) -> int:
        """Return the number of steps that were compared."""
        return len(self.times.steps)

    @property
    def waits_ns(self) -> dict[int, float]:
        """Return for each rank the exposed waiting of a step; ranks without a shared collective are left out."""
        compared = set(self.matches.rank.tolist())
        sums = self.waits.by_step.sum(axis=1)
        return {p.rank: float(sums[i]) / max(p.num_steps, 1) for i, p in enumerate(self.ranks) if i in compared}


def compare_ranks(job: JobProfile, traits: CauseTraits) -> Comparison:
    """Compare the ranks of a job; what cannot be compared is named in the notes, the rest is answered."""
    ranks, notes = usable(job)
    matches = match_collectives(ranks)
    times = times_of(ranks)
    waits = waits_of(ranks, matches, times)
    times = with_hosts(times, waits, roles_of(ranks))
    step_ns = float(np.median([p.step_ns for p in ranks])) if ranks else 0.0
    slow = slow_group(ranks, matches, step_ns) if matches.num else None
    lateness = lateness_of(ranks, times, waits, matches, same_links=slow is None)
    reason = Reason()
    if lateness.late:
        reason = reason_of(ranks, times, lateness, traits)
    elif lateness.in_turns:
        reason = reason_of_turns(times, lateness, traits)
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
        lone_work(ranks),
        _uneven(ranks, times, lateness),
        whole_work(ranks),
        reduced_sums(ranks, matches, times),
        stage_turns(ranks),
        most_exchanged(ranks, matches) if matches.num else None,
        replay_steps(ranks, matches, times, excess_of(ranks, lateness)) if lateness.late else None,
    )


def _uneven(ranks: tuple[RankProfile, ...], times: Times, lateness: Lateness) -> UnevenSizes | None:
    """Return the sizes that make whichever rank is late take longer."""
    latest = np.nan_to_num(lateness.excess).max(axis=0, initial=0.0)
    if not (lateness.late or lateness.in_turns) or not latest.any():
        return None
    return uneven_sizes(ranks, float(latest.mean() / np.nanmean(times.own)))


def excess_of(ranks: tuple[RankProfile, ...], lateness: Lateness) -> dict[int, Less]:
    """Return what the late ranks have more of than their equals."""
    return {
        i: Less(np.maximum(np.nan_to_num(lateness.excess[i]), 0.0), tuple(equals_of(ranks, i, lateness.late)))
        for i in lateness.late
    }


def _notes(ranks: tuple[RankProfile, ...], matches: Matches) -> list[str]:
    """State how far the matching can be trusted."""
    compared, apart = [ranks[i].rank for i in sorted(set(matches.rank.tolist()))], matches.apart
    verb = "shares" if len(apart) == 1 else "share"
    texts = {
        "The ranks share no collective whose ends agree: nothing is claimed of who waits for whom.": not (
            matches.num or matches.num_sampled
        ),
        f"{matches.num:,} collectives were matched across {listed(compared) if compared else ''}; the ends of one lie "
        f"{matches.residual_ns / 1e3:,.0f} µs apart (median).": matches.num,
        f"{matches.num_sampled:,} collectives are of groups that lack more than half of their ranks: who waits "
        "for whom in them, and their transfer times, are not known. Give the traces of all ranks of a "
        "group.": matches.num_sampled,
        f"{matches.num_unmatched:,} collectives are on one rank only and were not compared.": matches.num
        and matches.num_unmatched,
        f"{matches.num_disagreeing:,} collectives have the number of others in their group, but another name or size, "
        "and were not compared.": matches.num and matches.num_disagreeing,
        f"{listed([ranks[i].rank for i in apart]).capitalize() if apart else ''} {verb} no collective with the others: "
        "their ends lie apart.": matches.num and apart,
    }
    return [text for text, holds in texts.items() if holds and len(ranks) > 1]


def job_of(c: Comparison) -> Job:
    """Return what reports show of the comparison, but for the timelines of the ranks that are examined."""
    late, ranks = c.lateness, c.ranks
    number = [p.rank for p in ranks]
    slow = c.slow_group
    rows, arrivals = _rows(c)
    return Job(
        num_ranks=len(set(c.matches.rank.tolist())),
        num_collectives=c.matches.num,
        residual_ns=c.matches.residual_ns,
        steps=tuple(int(n) for n in c.times.steps),
        rows=rows,
        num_rows=len(ranks),
        arrivals=arrivals,
        late_ranks=tuple(sorted(number[i] for i in late.late)),
        num_late=late.num_late,
        num_unmatched=c.matches.num_unmatched + c.matches.num_disagreeing,
        late_ns=late.late_ns,
        saved_ns=c.saved_ns,
        cause=c.reason.cause,
        cause_ns=c.reason.more_ns,
        cause_share=c.reason.share,
        ratio=c.reason.ratio,
        taking_turns=tuple(number[i] for i in late.taking_turns) if late.in_turns and slow is None else (),
        begins_late=None if late.begins_late is None else number[late.begins_late],
        begins_late_ns=late.begins_late_ns,
        first_share=c.waits.first_share,
        slow_group=slow,
        collectives=c.collectives,
        differences=tuple(c.reason.differences.items()),
    )


def _rows(c: Comparison) -> tuple[tuple[RankRow, ...], tuple[str, ...]]:
    """Return a row for each of the worst ranks, and the names of the collectives whose arrivals they hold."""
    excess, matches, of_rank = c.lateness.excess, list[int](), dict[tuple[int, int], float]()
    if c.matches.num and len(c.times.steps):  # the step in the middle, and how long before the last each rank came
        number = c.times.steps[len(c.times.steps) // 2]
        step = c.matches.values([p.step_number for p in c.ranks], c.matches.column(c.ranks, "step"))
        rank, match, mine = c.matches.rank.tolist(), c.matches.match.tolist(), np.flatnonzero(step == number).tolist()
        matches = sorted({match[part] for part in mine})[:64]
        of_rank = {(rank[p], match[p]): float(c.waits.of_part[p]) for p in mine if match[p] <= matches[-1]}
    usual = [float(np.median(known)) if len(known) else None for known in (row[~np.isnan(row)] for row in excess)]
    attributed = c.waits.attributed_ns / max(float(c.waits.attributed_ns.sum()), 1.0)
    order = sorted(range(len(c.ranks)), key=lambda i: (i not in c.lateness.late, -(usual[i] or 0.0), -attributed[i]))
    names = tuple(c.matches.kinds[m].purpose or c.matches.kinds[m].name for m in matches)
    rows = tuple(
        RankRow(
            rank=c.ranks[i].rank,
            late_ns=usual[i],
            by_step_ns=tuple(None if np.isnan(ns) else float(ns) for ns in excess[i].tolist()),
            blame_share=float(attributed[i]),
            begins_ns=float(c.times.begins[i]) if c.matches.num else 0.0,
            arrivals_ns=tuple(of_rank.get((i, m)) for m in matches),
            host=c.ranks[i].host,
        )
        for i in order[: max(64, len(c.lateness.late))]  # of more late ranks each has one
    )
    return rows, names
