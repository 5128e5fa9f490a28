"""What reports say of a job of several ranks, and the order that their tables list its ranks in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.model.diagnosis import Diagnosis, RankSummary
from diagnose.model.job import Job
from diagnose.reports.format import duration, percent, plural
from diagnose.reports.language import tr

NO_JOB = Job(0, 0, 0.0, ())


def worst_first(d: Diagnosis, limit: int) -> list[RankSummary]:
    """Return the rows of a table of ranks: late ones, then as the comparison orders them, then the slowest.

    At most ``limit``, but late ranks in any case.
    """
    job = d.job or NO_JOB
    late, place = job.late_ranks, {row.rank: i for i, row in enumerate(job.rows)}
    ordered = sorted(d.ranks, key=lambda r: (r.rank not in late, place.get(r.rank, len(place)), -r.step_ns, r.rank))
    return ordered[: max(limit, sum(r.rank in late for r in ordered))]


def left_out(d: Diagnosis, shown: Sequence[RankSummary]) -> str:
    """Return which of the ranks a table holds, "" where it holds all of them."""
    if len(shown) >= len(d.ranks):
        return ""
    job, words = d.job or NO_JOB, "The {num} slowest of {ranks}; the JSON holds all of them."
    if job.late_ranks or job.rows:
        words = "{num} of {ranks}: late ones first, then by how late they are; the JSON holds all of them."
    listed = tr(words, num=len(shown), ranks=plural(len(d.ranks), "rank"))
    if job.num_rows <= len(job.rows):
        return listed
    more = "Lateness in each step it has of the {num} worst of {ranks}, the worst first."
    return f"{listed} {tr(more, num=len(job.rows), ranks=plural(job.num_rows, 'rank'))}"


def job_sentences(j: Job) -> Iterator[str]:
    """Yield what the comparison of the ranks found, one sentence each."""
    if j.late_ranks:
        yield from _late(j)
    elif j.taking_turns:
        who = ", ".join(map(str, j.taking_turns[:8]))
        yield tr("Ranks {who} take turns being late: a step waits {saved}.", who=who, saved=duration(j.saved_ns))
    elif _are_compared(j):
        yield from _waiting(j)
    if j.num_unmatched:
        num = plural(j.num_unmatched, "collective")
        yield tr("{num} could not be compared between ranks; who is late there is not known.", num=num)
    if j.begins_late is not None:
        yield tr(
            "Rank {num} begins its first step {time} late; the first collective takes {share} of all waiting for it.",
            num=j.begins_late,
            time=duration(j.begins_late_ns),
            share=percent(j.first_share),
        )
    if j.slow_group is not None:
        g = j.slow_group
        yield tr(
            "The group of ranks {members} transfers {factor} × as long as the {others} that do the same.",
            members=", ".join(map(str, g.members[:8])),
            factor=f"{g.ratio:.1f}",
            others=plural(g.num_others, "other group"),
        )


def _late(j: Job) -> Iterator[str]:
    """Yield who is late and why, and what a step would take with none of them late."""
    why = tr("; no recorded cause explains it")
    if j.cause:
        why = tr(", {share} of it {cause}", share=percent(j.cause_share), cause=j.cause)
    late = "Rank {who} is late in {when}, by {late}{why}.", "A step would be {saved} shorter with it no later."
    if len(j.late_ranks) > 1:
        late = "Ranks {who} are late in {when}, by {late}{why}.", "A step would be {saved} shorter with them no later."
    first = late[0].replace("{when}", "the recorded step" if len(j.steps) == 1 else "{num} of {steps}")
    who = ", ".join(map(str, j.late_ranks[:8])) + " …" * (len(j.late_ranks) > 8)
    steps = plural(len(j.steps), "step")
    yield tr(first, who=who, late=duration(j.late_ns), why=why, num=j.num_late, steps=steps)
    yield tr(late[1], saved=duration(j.saved_ns))


def _waiting(j: Job) -> Iterator[str]:
    """Yield what ranks wait for each other if none is late, and for which of them most."""
    most = max(j.rows, key=lambda row: row.blame_share, default=None)
    if most is None or not j.saved_ns:
        yield tr("No rank waits for another one.")
        return
    yield tr(
        "Ranks wait {time} a step for others, in the mean; {share} of it is for rank {num}.",
        time=duration(j.saved_ns),
        share=percent(most.blame_share, 0),
        num=most.rank,
    )


def _are_compared(j: Job) -> bool:
    """Return whether lateness of any rank is known; without it nothing is said of who is late."""
    return j.num_collectives > 0 and (not j.rows or any(r.late_ns is not None for r in j.rows))
