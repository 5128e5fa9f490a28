"""Profiles as literals: a rank's steps in ms, each with what it spends on its own and one collective that ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from diagnose.analyzers import TRAITS
from diagnose.ranks.comparison import Comparison, compare_ranks
from diagnose.ranks.profile import COMMUNICATION, CollectiveKind, Collectives, Group, JobProfile, RankProfile

MS = 1_000_000
NOISE = (0.02, -0.01, 0.0, 0.03, -0.02, 0.01)  # ms, by which steps vary
UNNAMED = Group()
Spent = Sequence[Mapping[str, float]]  # ms by cause, of each step


def profile(
    rank: int,
    spent: Spent,
    ends: Sequence[float],
    *,
    group: Group = UNNAMED,
    clock: float = 0.0,
    begins: float = 0.0,
    **more: object,
) -> RankProfile:
    """Return a rank whose steps end, with one all-reduce each, at ``ends`` (ms); it waits for what is left of each."""
    bounds = np.round((np.array(ends) + clock) * MS).astype(np.int64)
    before = np.concatenate([[round((begins + clock) * MS)], bounds[:-1]])
    own = np.array([round(sum(step.values()) * MS) for step in spent], np.int64)
    causes = (*dict.fromkeys(cause for step in spent for cause in step), COMMUNICATION)
    rows = [[round(step.get(cause, 0.0) * MS) for step in spent] for cause in causes[:-1]]
    length = bounds - before - own
    num = len(ends)
    columns = {"sequence": np.full(num, -1), "start": bounds - length, "length": length}
    known = {
        "world_size": 4,
        "has_device": True,
        "step_ns": float(np.diff(np.concatenate([[0.0], ends])).mean() * MS),
        "window": (int(before[0]), int(bounds[-1])),
        "step_number": np.arange(num),
        "step_begin": before,
        "step_end": bounds,
        "bounds": bounds,
        "causes": causes,
        "spent": np.hstack([np.array([*rows, length.tolist()], np.int64), np.zeros((len(causes), 1), np.int64)]),
        "groups": (group,),
        "kinds": (CollectiveKind(0, "all_reduce", 1 << 20, 1 << 20, "float"),),
        "collectives": Collectives(
            np.zeros(num, np.int32),
            np.arange(num, dtype=np.int32),
            covered=np.zeros(num, np.int64),
            alone=length,
            hidden=np.zeros(num, np.int64),
            queued=np.zeros(num, np.int64),
            unlaunched=np.zeros(num, np.int64),
            **columns,
        ),
        "path": f"rank{rank}.json",
        "num_events": 100,
    }
    return RankProfile(rank=rank, **(known | more))


@pytest.fixture
def compared() -> Callable[..., Comparison]:
    """Compare ranks that are given by the own times of their steps, ms by cause; each step ends after the slowest."""

    def compare(*ranks: Spent, transfer: float = 0.5, **more: object) -> Comparison:
        own = np.array([[sum(step.values()) for step in spent] for spent in ranks])
        ends = np.cumsum(own.max(axis=0) + transfer).tolist()
        profiles = [profile(n, spent, ends, **({"world_size": len(ranks)} | more)) for n, spent in enumerate(ranks)]
        return compare_ranks(JobProfile.of(profiles), TRAITS)

    return compare


@pytest.fixture
def make_profile() -> Callable[..., RankProfile]:
    """Give what makes one profile."""
    return profile


def steps(computing, *, loading=0.0, num=6, shift=0):
    """Return steps of ``computing`` ms that vary a little, and ``loading`` ms of waiting for the loader."""
    return [{"compute-forward": computing + NOISE[(n + shift) % 6], "data-stall": loading} for n in range(num)]
