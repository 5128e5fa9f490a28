"""What collectives cost, kind by kind and group by group: waiting and transfer apart, bandwidth, hidden or exposed.

The transfer is what the last rank to come is inside for. Algorithm bandwidth is the size of the whole operation by that
time; bus bandwidth takes it times what a link has to carry of it, as NCCL's tests do: 2(n-1)/n for an all-reduce,
(n-1)/n for a gather, a scatter and an all-to-all among n ranks, 1 for the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.intervals import distinct
from diagnose.model.job import CollectiveSummary, SlowGroup
from diagnose.ranks.collectives import BUS_FACTORS
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import Group, RankProfile
from diagnose.ranks.waits import Waits
from diagnose.tables.thresholds import THRESHOLDS


def _look(matches: Matches, i: int) -> tuple[str, str, str, int, int, str]:
    kind, group = matches.kinds[i], matches.groups[i]
    return (kind.name, kind.purpose, group.use, len(group.members) or group.size, kind.shared_bytes, kind.dtype)


def collective_times(ranks: Sequence[RankProfile], matches: Matches, waits: Waits) -> tuple[CollectiveSummary, ...]:
    """Return what each kind of collective costs, the longest waiting and transfer first."""
    length, hidden = matches.column(ranks, "length"), matches.column(ranks, "hidden")
    transfer, until = matches.least(length), matches.until
    looks: dict[tuple[str, str, str, int, int, str], list[int]] = defaultdict(list)
    for i in range(matches.num):
        looks[_look(matches, i)].append(i)
    found = []
    for (name, purpose, use, size, _, dtype), rows in looks.items():
        parts = np.concatenate([np.arange(matches.first[i], until[i]) for i in rows])
        members = distinct(matches.rank[parts]).tolist()
        rank_steps = max(sum(ranks[i].num_steps for i in members), 1)
        sizes = [matches.kinds[i].num_bytes for i in rows if matches.kinds[i].num_bytes >= 0]
        moved = [_moved(matches, i) for i in rows]
        took = float(np.median(transfer[rows]))
        algorithm = float(np.median(moved)) / took if took > 0 and min(moved) >= 0 else 0.0
        links = {(ranks[i].host, ranks[i].link_gbps) for i in members}
        found.append(
            CollectiveSummary(
                name=name,
                purpose=purpose,
                group_use=use,
                group_size=size,
                num_groups=len({matches.groups[i] for i in rows}),
                num_bytes=int(np.median(sizes or [-1])),
                dtype=dtype,
                per_step=len(parts) / rank_steps,
                waiting_ns=float(waits.of_part[parts].sum()) / rank_steps,
                exposed_waiting_ns=float(waits.exposed[parts].sum()) / rank_steps,
                transfer_ns=took,
                hidden_share=float(hidden[parts].sum()) / max(float(length[parts].sum()), 1.0),
                algorithm_gbps=algorithm,
                bus_gbps=algorithm * _factor(name, size),
                peak_gbps=max(links)[1] if len(links) == 1 and max(links)[0] else 0.0,
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


class _Slower(NamedTuple):
    """How much longer one kind of collective takes in a group than in those that share no member with it."""

    moved: int  # bytes, by all of them
    own_ns: float
    usual_ns: float
    num: int
    num_others: int
    first: int  # of these collectives


def slow_group(ranks: Sequence[RankProfile], matches: Matches, step_ns: float) -> SlowGroup | None:
    """Return the group whose transfers take clearly longer than those of the other groups that do the same."""
    transfer = matches.least(matches.column(ranks, "length")).astype(np.float64)
    by_look: dict[tuple[object, ...], dict[Group, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in range(matches.num):
        by_look[_look(matches, i)][matches.groups[i]].append(i)
    slower: dict[Group, list[_Slower]] = defaultdict(list)
    for groups in by_look.values():
        middle = {g: float(np.median(transfer[rows])) for g, rows in groups.items()}
        members = {g: frozenset(g.members) for g in groups}
        for group, rows in groups.items():
            rest = [ns for g, ns in middle.items() if members[g].isdisjoint(members[group])]
            if rest:
                moved = _moved(matches, rows[0]) * len(rows)
                usual_ns = float(np.median(rest))
                slower[group].append(_Slower(moved, middle[group], usual_ns, len(rows), len(rest), rows[0]))
    more = {group: sum((each.own_ns - each.usual_ns) * each.num for each in kinds) for group, kinds in slower.items()}
    if not more:
        return None
    worst = max(more, key=lambda g: more[g])
    more_ns = more[worst] / max(p.num_steps for p in ranks)
    ratio = 1 + more[worst] / max(sum(each.usual_ns * each.num for each in slower[worst]), 1.0)
    if ratio < 1.3 or more_ns < THRESHOLDS.naming_share * step_ns:  # rings through one node differ by some per cent
        return None
    most = max(slower[worst])
    each_moved = max(most.moved / most.num, 0.0) * _factor(matches.kinds[most.first].name, len(worst.members))
    own, others = (each_moved / ns if min(most.own_ns, most.usual_ns) > 0 else 0.0 for ns in most[1:3])
    return SlowGroup(worst.members, worst.use, slower[worst][-1].num_others, ratio, more_ns, own, others)


def most_exchanged(ranks: Sequence[RankProfile], matches: Matches) -> tuple[int, float] | None:
    """Return the rank (its index) with most to exchange in all-to-alls, and by how much it exceeds the mean."""
    sent: Floats = np.zeros(len(ranks))
    for rank, match, row in zip(matches.rank.tolist(), matches.match.tolist(), matches.row.tolist(), strict=True):
        if matches.kinds[match].name == "all_to_all":
            kind = ranks[rank].kinds[int(ranks[rank].collectives.kind[row])]
            sent[rank] += max(kind.num_bytes, kind.num_bytes_out, 0)
    known = sent[sent > 0]
    return (int(sent.argmax()), float(known.max() / known.mean())) if len(known) > 1 else None
