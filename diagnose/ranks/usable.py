"""Which of the given ranks can be compared: those of one job, one file each, that recorded the same steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from diagnose.model.intervals import among

if TYPE_CHECKING:
    from diagnose.ranks.profile import JobProfile, RankProfile

__all__ = ["MAX_LISTED", "Usable", "in_order", "listed", "usable"]

MAX_LISTED = 8
MAX_CLOCKS_APART_NS = 60_000_000_000  # of two hosts without a common time server


class Usable(NamedTuple):
    """The ranks that are compared, and why others are not."""

    ranks: tuple[RankProfile, ...]
    notes: tuple[str, ...]  # sentences for `trust`


def usable(job: JobProfile) -> Usable:
    """Divide a job's profiles into what can be compared and what is named in `trust`."""
    notes = list(job.missing)
    ranks = _one_job(job.ranks, notes)
    ranks = _one_each(ranks, notes)
    ranks = _same_steps(ranks, notes)
    notes += _missing(job, ranks)
    notes += [f"The trace of rank {p.rank} is cut off: the ranks are compared up to there." for p in ranks if p.is_cut]
    return Usable(tuple(ranks), tuple(notes))


def listed(numbers: Sequence[int]) -> str:
    """Return "rank 3", "ranks 1, 2 and 5", or the first few of many; runs of three and more as "8 to 15"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [t for a, b in runs for t in ([f"{a} to {b}"] if b - a > 1 else [str(n) for n in range(a, b + 1)])]
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    texts = texts[:MAX_LISTED]
    plain = (
        texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if not more else ", ".join(texts)
    )
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {plain}{more}"


def in_order(numbers: Sequence[int]) -> str:
    """Return several ranks in the order given, who is waited for most first: "5, 1 and 2", or the first few of many."""
    shown = [str(n) for n in numbers[:MAX_LISTED]]
    if len(numbers) > MAX_LISTED:
        return f"{', '.join(shown)} and {len(numbers) - MAX_LISTED} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _one_job(ranks: Sequence[RankProfile], notes: list[str]) -> list[RankProfile]:
    """Leave out what was recorded in another run, or in a job of another size, than most."""
    kept = list(ranks)
    for attribute, what in (("run_id", "another run"), ("world_size", "a job of another size")):
        values = Counter(v for p in kept if (v := getattr(p, attribute)))
        if len(values) < 2:
            continue
        most = values.most_common(1)[0][0]
        other = [p for p in kept if getattr(p, attribute) not in ("", most)]
        notes += [f"{p.path or f'Rank {p.rank}'} is of {what} and was left out of the comparison." for p in other]
        kept = [p for p in kept if p not in other]
    return kept


def _one_each(ranks: Sequence[RankProfile], notes: list[str]) -> list[RankProfile]:
    """Keep of two files of one rank the one that agrees with the other ranks, or else the fuller one."""
    num = Counter(p.rank for p in ranks)
    others = [p for p in ranks if num[p.rank] == 1]
    kept: dict[int, RankProfile] = {}
    for p in sorted(ranks, key=lambda p: (*(-share for share in _agreement(p, others)), -p.num_events, p.path)):
        other = kept.setdefault(p.rank, p)
        if other is not p:
            notes.append(
                f"{other.path} and {p.path} are both of rank {p.rank}; the first was used. Where files do not hold "
                "their rank, put it into their names (rank0.json, rank1.json)."
            )
    return sorted(kept.values(), key=lambda p: p.rank)


def _agreement(p: RankProfile, others: Sequence[RankProfile]) -> tuple[float, float, float]:
    """Return with what share of the others a file has steps, time and kinds of collectives in common."""
    steps, looks = set(p.step_number.tolist()), _looks(p)
    same = [
        (
            bool(steps & set(o.step_number.tolist())),
            not (p.epoch_ns and o.epoch_ns) or _at_once(p, o),
            looks == _looks(o),
        )
        for o in others
    ]
    by_step, by_time, by_kind = (sum(column) / len(same) for column in zip(*same, strict=True)) if same else (0, 0, 0)
    return by_step, by_time, by_kind


def _looks(p: RankProfile) -> set[tuple[str, int]]:
    return {(kind.name, p.groups[kind.group].size) for kind in p.kinds}


def _at_once(p: RankProfile, other: RankProfile) -> bool:
    """Return whether two windows overlap by the wall clock, as far apart as clocks of hosts may be."""
    (begin, end), (begin_other, end_other) = p.window, other.window
    return (
        begin + p.epoch_ns <= end_other + other.epoch_ns + MAX_CLOCKS_APART_NS
        and begin_other + other.epoch_ns <= end + p.epoch_ns + MAX_CLOCKS_APART_NS
    )


def _same_steps(ranks: list[RankProfile], notes: list[str]) -> list[RankProfile]:
    """Leave out ranks that recorded none of the steps that most of them did."""
    if len(ranks) < 2:
        return ranks
    counts = Counter(n for p in ranks for n in set(p.step_number.tolist()))
    common = max(counts.values(), default=0)
    steps = [n for n, count in counts.items() if count == common]
    other = [p for p in ranks if not among(p.step_number, steps).any()]
    for p in other:
        first, last = (int(p.step_number[0]), int(p.step_number[-1])) if p.num_steps else (0, 0)
        notes.append(
            f"Rank {p.rank} recorded steps {first} to {last} and the others {min(steps)} to {max(steps)}: it was left "
            "out of the comparison. Record the same steps on all ranks."
        )
    return [p for p in ranks if p not in other]


def _missing(job: JobProfile, ranks: Sequence[RankProfile]) -> list[str]:
    """Name the ranks of the job of which there is nothing."""
    size = max((p.world_size for p in ranks), default=0)
    given = {p.rank for p in job.ranks}
    if size < 2 or len(given) < 2:
        return []
    absent = [n for n in range(size) if n not in given] if size <= 1 << 16 else []
    if not absent:
        return []
    return [f"Of {size} ranks {len(given & set(range(size)))} were given: {listed(absent)} {_is(absent)} missing."]


def _is(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"
