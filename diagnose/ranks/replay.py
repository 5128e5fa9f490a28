"""The steps of all ranks replayed through their collectives: what a step takes if some ranks were as their equals.

Each rank has two lanes. Its own work runs on one; a collective runs on the other, from when the rank's work and its
collective before it are there, and ends for all members at once, after the last of them and the transfer. Where nothing
covered the rest of a collective, the rank's work waited for it, and does so in the replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.frozen import dataclass
from diagnose.model.intervals import distinct
from diagnose.ranks.matches import Matches
from diagnose.ranks.profile import RankProfile

__all__ = ["Replayed", "replay_steps"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the replay of the recorded steps gave, ns: means over the steps that all replayed ranks have."""

    measured_ns: float
    unchanged_ns: float
    after_ns: float

    @property
    def error(self) -> float:
        """Return by which share the unchanged replay misses the measured steps."""
        return self.unchanged_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    @property
    def saved_ns(self) -> float:
        """Return what the change saves of a step."""
        return max(self.unchanged_ns - self.after_ns, 0.0)


class _Part(NamedTuple):
    """What one rank has of one collective, on its own lane: ns of its work since the last step's end."""

    rank: int
    arrives: float  # own work done when it comes
    blocks: float | None  # own work done when it begins to wait for the end; None: it never does


def replay_steps(
    ranks: Sequence[RankProfile], matches: Matches, own: Floats, faster: Mapping[int, tuple[Floats, bool]]
) -> Replayed | None:
    """Replay every step but the first, as it was and with some ranks ``faster``; None where there is none to replay.

    ``own`` is [rank, step]. ``faster`` has for each rank what goes of its own time in each step, and whether all of its
    work shrinks (a slower device) or what comes first in the step (a batch that is waited for).
    """
    steps = distinct(*(p.step_number for p in ranks))
    transfer = matches.least(matches.column(ranks, "length")).astype(np.float64)
    in_step = _by_step(ranks, matches)
    measured, unchanged, after = [], [], []
    for s, number in enumerate(steps.tolist()):
        if s == 0 or number not in in_step or np.isnan(own[:, s]).any():
            continue
        collectives = in_step[number]
        lengths = [float(p.bounds[i] - p.bounds[i - 1]) for p in ranks for i in [_place(p, number)] if i > 0]
        if len(lengths) < len(ranks):
            continue
        measured.append(float(np.median(lengths)))
        work = own[:, s]
        unchanged.append(_length(collectives, transfer, work, {}))
        after.append(
            _length(collectives, transfer, work, {r: (float(ns[s]), all_) for r, (ns, all_) in faster.items()})
        )
    if not measured:
        return None
    return Replayed(float(np.mean(measured)), float(np.mean(unchanged)), float(np.mean(after)))


def _place(p: RankProfile, number: int) -> int:
    at = int(np.searchsorted(p.step_number, number))
    return at if at < p.num_steps and p.step_number[at] == number else -1


def _by_step(ranks: Sequence[RankProfile], matches: Matches) -> dict[int, list[tuple[int, list[_Part]]]]:
    """Return for each step its collectives in the order of their ends, and the ranks' parts of them."""
    lanes = [_lane(p) for p in ranks]
    found: dict[int, dict[int, list[_Part]]] = {}
    for rank, row, match in zip(matches.rank.tolist(), matches.row.tolist(), matches.match.tolist(), strict=True):
        p = ranks[rank]
        number = int(p.step_number[int(p.collectives.step[row])])
        arrives, blocks = lanes[rank]
        at = None if np.isnan(blocks[row]) else float(blocks[row])
        found.setdefault(number, {}).setdefault(match, []).append(_Part(rank, float(arrives[row]), at))
    return {number: sorted(of_match.items()) for number, of_match in found.items()}


def _lane(p: RankProfile) -> tuple[Floats, Floats]:
    """Return for each collective the own work done before it comes, and before it is waited for (NaN: never)."""
    c = p.collectives
    begin = np.concatenate([[p.window[0]], p.bounds[:-1]])[c.step] if len(c) else np.zeros(0, np.int64)
    waited = np.zeros(len(c))
    for step in range(p.num_steps):
        mine = np.flatnonzero(c.step == step)
        waited[mine] = np.concatenate([[0], np.cumsum(c.alone[mine])[:-1]]) if len(mine) else 0
    arrives = np.maximum(c.start - begin - waited, 0).astype(np.float64)
    blocks = np.where(c.alone > 0, arrives + c.covered, np.nan)
    return arrives, blocks


def _length(
    collectives: list[tuple[int, list[_Part]]], transfer: Floats, own: Floats, faster: Mapping[int, tuple[float, bool]]
) -> float:
    """Return what a step takes: until the slowest rank has done its work and left its last collective."""
    waited = np.zeros(len(own))
    comm = np.zeros(len(own))
    for match, parts in collectives:
        came = max(max(_done(p.arrives, p.rank, own, faster) + waited[p.rank], comm[p.rank]) for p in parts)
        end = came + transfer[match]
        for p in parts:
            comm[p.rank] = end
            if p.blocks is not None:
                waited[p.rank] += max(end - _done(p.blocks, p.rank, own, faster) - waited[p.rank], 0.0)
    lengths = [_done(float(own[r]), r, own, faster) + waited[r] for r in range(len(own))]
    return float(max(*lengths, *comm.tolist()))


def _done(work: float, rank: int, own: Floats, faster: Mapping[int, tuple[float, bool]]) -> float:
    """Return when own work that takes ``work`` is done if the rank is faster."""
    less, of_all = faster.get(rank, (0.0, False))
    if of_all:
        return work * (1 - min(less / max(float(own[rank]), 1.0), 1.0))
    return max(work - less, 0.0)
