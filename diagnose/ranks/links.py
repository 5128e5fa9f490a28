"""What collectives cost, kind by kind and group by group: waiting and transfer apart, bandwidth, hidden or exposed.

The transfer is what the last rank to come is inside for. Algorithm bandwidth is the size of the whole operation by that
time; bus bandwidth takes it times what a link has to carry of it, as NCCL's tests do: 2(n-1)/n for an all-reduce,
(n-1)/n for a gather, a scatter and an all-to-all among n ranks, 1 for the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.intervals import distinct
from diagnose.model.job import CollectiveSummary, SlowGroup
from diagnose.ranks.collectives import BUS_FACTORS
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import Group, RankProfile
from diagnose.ranks.waits import Waits

__all__ = ["collective_times", "most_exchanged", "slow_group"]


def _look(matches: Matches, i: int) -> tuple[str, str, str, int, int, str]:
    kind, group = matches.kinds[i], matches.groups[i]
    size = kind.num_bytes if kind.name not in ("all_to_all", "send_recv") else -1
    return (kind.name, kind.purpose, group.use, len(group.members) or group.size, size, kind.dtype)


def collective_times(ranks: Sequence[RankProfile], matches: Matches, waits: Waits) -> tuple[CollectiveSummary, ...]:
    """Return what each kind of collective costs, the longest waiting and transfer first."""
    length, hidden = matches.column(ranks, "length"), matches.column(ranks, "hidden")
    transfer = matches.least(length)
    looks: dict[tuple[str, str, str, int, int, str], list[int]] = defaultdict(list)
    for i in range(matches.num):
        looks[_look(matches, i)].append(i)
    until = np.append(matches.first[1:], len(matches.rank))
    found = []
    for (name, purpose, use, size, _, dtype), rows in looks.items():
        parts = np.concatenate([np.arange(matches.first[i], until[i]) for i in rows])
        rank_steps = sum(ranks[i].num_steps for i in distinct(matches.rank[parts]).tolist())
        sizes = [matches.kinds[i].num_bytes for i in rows if matches.kinds[i].num_bytes >= 0]
        num_bytes = int(np.median(sizes)) if sizes else -1
        moved = [_moved(matches, i) for i in rows]
        took = float(np.median(transfer[rows]))
        algorithm = float(np.median(moved)) / took if took > 0 and min(moved, default=-1) >= 0 else 0.0
        found.append(
            CollectiveSummary(
                name=name,
                purpose=purpose,
                group_use=use,
                group_size=size,
                num_groups=len({matches.groups[i] for i in rows}),
                num_bytes=num_bytes,
                dtype=dtype,
                per_step=len(parts) / max(rank_steps, 1),
                waiting_ns=float(waits.of_part[parts].sum()) / max(rank_steps, 1),
                exposed_waiting_ns=float(waits.exposed[parts].sum()) / max(rank_steps, 1),
                transfer_ns=took,
                hidden_share=float(hidden[parts].sum()) / max(float(length[parts].sum()), 1.0),
                algorithm_gbps=algorithm,
                bus_gbps=algorithm * _factor(name, size),
                peak_gbps=_peak(ranks, matches, rows),
            )
        )
    return tuple(sorted(found, key=lambda c: -(c.waiting_ns + c.transfer_ns * c.per_step)))


def _moved(matches: Matches, i: int) -> int:
    """Return the size of the whole operation, as NCCL's tests count it; -1: not recorded."""
    kind, num = matches.kinds[i], max(len(matches.groups[i].members), matches.groups[i].size, 1)
    if kind.name == "all_gather":
        return kind.num_bytes_out if kind.num_bytes_out > kind.num_bytes else kind.num_bytes * num
    return kind.num_bytes


def _factor(name: str, size: int) -> float:
    return BUS_FACTORS[name] * (size - 1) / size if name in BUS_FACTORS and size > 1 else 1.0


def _peak(ranks: Sequence[RankProfile], matches: Matches, rows: Sequence[int]) -> float:
    until = np.append(matches.first[1:], len(matches.rank))
    found = {rank for i in rows for rank in matches.rank[matches.first[i] : until[i]].tolist()}
    hosts = {(ranks[rank].host, ranks[rank].link_gbps) for rank in found}
    host, peak = next(iter(hosts)) if len(hosts) == 1 else ("", 0.0)
    return peak if host else 0.0


def slow_group(ranks: Sequence[RankProfile], matches: Matches, step_ns: float) -> SlowGroup | None:
    """Return the group whose transfers take clearly longer than those of the other groups that do the same."""
    transfer = matches.least(matches.column(ranks, "length")).astype(np.float64)
    by_look: dict[tuple[object, ...], dict[Group, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in range(matches.num):
        by_look[_look(matches, i)][matches.groups[i]].append(i)
    more: dict[Group, float] = defaultdict(float)
    usual: dict[Group, float] = defaultdict(float)
    rates: dict[Group, tuple[float, float, float]] = {}
    others: dict[Group, int] = {}
    for groups in by_look.values():
        if len(groups) < 2:
            continue
        middle = {g: float(np.median(transfer[rows])) for g, rows in groups.items()}
        members = {g: frozenset(g.members) for g in groups}
        for group, rows in groups.items():
            beside = [ns for g, ns in middle.items() if members[g].isdisjoint(members[group])]
            if not beside:
                continue  # parts of one group, of which members lack collectives
            rest = float(np.median(beside))
            more[group] += (middle[group] - rest) * len(rows)
            usual[group] += rest * len(rows)
            others[group] = len(beside)
            rate = _bus_rates(matches, rows, middle[group], rest)
            if rate[0] * len(rows) > rates.get(group, (0.0, 0.0, 0.0))[0]:
                rates[group] = (rate[0] * len(rows), rate[1], rate[2])
    if not more:
        return None
    worst = max(more, key=lambda g: more[g])
    num_steps = max(p.num_steps for p in ranks)
    ratio = 1 + more[worst] / max(usual[worst], 1.0)
    # Than the other groups of its kind: rings through one node differ by some per cent.
    if ratio < 1.3 or more[worst] / num_steps < 0.01 * step_ns:  # of the step
        return None
    _, own, rest = rates.get(worst, (0.0, 0.0, 0.0))
    return SlowGroup(worst.members, worst.use, others[worst], ratio, more[worst] / num_steps, own, rest)


def _bus_rates(matches: Matches, rows: Sequence[int], own_ns: float, others_ns: float) -> tuple[float, float, float]:
    """Return the bytes moved, and the bus bandwidth in this group and in the others, 0 where sizes are not known."""
    moved, kind = _moved(matches, rows[0]), matches.kinds[rows[0]]
    if moved <= 0 or own_ns <= 0 or others_ns <= 0:
        return 0.0, 0.0, 0.0
    factor = _factor(kind.name, len(matches.groups[rows[0]].members))
    return float(moved), moved / own_ns * factor, moved / others_ns * factor


def most_exchanged(ranks: Sequence[RankProfile], matches: Matches) -> tuple[int, float] | None:
    """Return the rank (its index) with most to exchange in all-to-alls, and by how much it exceeds the mean."""
    if not any(kind.name == "all_to_all" for kind in matches.kinds):
        return None
    sent: Floats = np.zeros(len(ranks))
    for rank, match, row in zip(matches.rank.tolist(), matches.match.tolist(), matches.row.tolist(), strict=True):
        kind = ranks[rank].kinds[int(ranks[rank].collectives.kind[row])]
        if matches.kinds[match].name == "all_to_all":
            sent[rank] += max(kind.num_bytes, kind.num_bytes_out, 0)
    known = sent[sent > 0]
    return (int(sent.argmax()), float(known.max() / known.mean())) if len(known) > 1 else None
