"""Which of the given ranks can be compared: those of one job, one file each, that recorded the same steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from diagnose.ranks.profile import JobProfile, RankProfile

MAX_LISTED = 8


class Usable(NamedTuple):
    """The ranks that are compared, and why others are not."""

    ranks: tuple[RankProfile, ...]
    notes: tuple[str, ...]  # sentences for `trust`


def usable(job: JobProfile) -> Usable:
    """Divide a job's profiles into what can be compared and what is named in `trust`."""
    notes = list(job.missing)
    kept = list(job.ranks)
    # What was recorded in another run, or in a job of another size, than most is left out.
    for attribute, what in (("run_id", "another run"), ("world_size", "a job of another size")):
        known = Counter(filter(None, (getattr(p, attribute) for p in kept))).most_common(1)
        other = [p for p in kept if getattr(p, attribute) not in ("", *(most for most, _ in known))]
        notes += [f"{p.path or f'Rank {p.rank}'} is of {what} and was left out of the comparison." for p in other]
        kept = [p for p in kept if p not in other]
    ranks = _same_steps(_one_each(kept, notes), notes)
    size, given = max((p.world_size for p in ranks), default=0), {p.rank for p in job.ranks}
    absent = sorted(set(range(size if size <= 1 << 16 else 0)) - given)
    if absent and len(given) > 1:
        is_, num = "is" if len(absent) == 1 else "are", len(given & set(range(size)))
        notes.append(f"Of {size} ranks {num} were given: {listed(absent)} {is_} missing.")
    notes += [f"The trace of rank {p.rank} is cut off: the ranks are compared up to there." for p in ranks if p.is_cut]
    return Usable(tuple(ranks), tuple(notes))


def listed(numbers: Sequence[int]) -> str:
    """Return "rank 3", "ranks 1, 2 and 5", or the first few of many; runs of three and more as "8 to 15"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    texts = [t for run in runs for t in (map(str, run) if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {in_order(texts)}"


def in_order(numbers: Sequence[int | str]) -> str:
    """Return several ranks in the order given, who is waited for most first: "5, 1 and 2", or the first few of many."""
    *shown, last = map(str, numbers[:MAX_LISTED])
    if len(numbers) > MAX_LISTED:
        shown, last = [*shown, last], f"{len(numbers) - MAX_LISTED} more"
    return f"{', '.join(shown)} and {last}" if shown else last


def _one_each(ranks: Sequence[RankProfile], notes: list[str]) -> list[RankProfile]:
    """Keep of two files of one rank the one that agrees with the other ranks, or else the fuller one."""
    num = Counter(p.rank for p in ranks)
    others = [p for p in ranks if num[p.rank] == 1]
    kept: dict[int, RankProfile] = {}
    for p in sorted(ranks, key=lambda p: (*(-share for share in _agreement(p, others)), -p.num_events, p.path)):
        other = kept.setdefault(p.rank, p)
        if other is not p:
            notes.append(
                f"{other.path} and {p.path} are both of rank {p.rank}; the first was used. If files do not contain "
                "their rank, put it into their names (rank0.json, rank1.json)."
            )
    return sorted(kept.values(), key=lambda p: p.rank)


def _agreement(p: RankProfile, others: Sequence[RankProfile]) -> list[int]:
    """Return with how many others a file has steps, time and kinds of collectives in common."""

    def looks(p: RankProfile) -> set[tuple[str, int]]:
        return {(kind.name, p.groups[kind.group].size) for kind in p.kinds}

    def at_once(other: RankProfile) -> bool:
        """Return whether both windows overlap by the wall clock, as far as that is known and clocks agree."""
        if not p.epoch_ns or not other.epoch_ns:
            return True
        later = max(p.window[0] + p.epoch_ns, other.window[0] + other.epoch_ns)
        # Of two hosts without a common time server.
        return later <= min(p.window[1] + p.epoch_ns, other.window[1] + other.epoch_ns) + 60_000_000_000

    return [
        sum(not set(p.step_number.tolist()).isdisjoint(o.step_number.tolist()) for o in others),
        sum(at_once(o) for o in others),
        sum(looks(p) == looks(o) for o in others),
    ]


def _same_steps(ranks: list[RankProfile], notes: list[str]) -> list[RankProfile]:
    """Leave out ranks that recorded none of the steps that most of them did."""
    counts = Counter(n for p in ranks for n in set(p.step_number.tolist()))
    most = max(counts.values(), default=0)
    steps = {n for n, count in counts.items() if count == most}
    other = [p for p in ranks if len(ranks) > 1 and steps.isdisjoint(p.step_number.tolist())]
    for p in other:
        first, last = (p.step_number[0], p.step_number[-1]) if p.num_steps else (0, 0)
        notes.append(
            f"Rank {p.rank} recorded steps {first} to {last} and the others {min(steps)} to {max(steps)}: it was left "
            "out of the comparison. Record the same steps on all ranks."
        )
    return [p for p in ranks if p not in other]
