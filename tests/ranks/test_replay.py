"""All ranks replayed through their collectives."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.ranks.matching import match_collectives
from diagnose.ranks.profile import Collectives
from diagnose.ranks.replay import Less, replay_steps
from diagnose.ranks.waits import times_of

NOISE = (0.02, -0.01, 0.0, 0.03, -0.02, 0.01)


def steps(computing, *, loading=0.0):
    return [{"compute-forward": computing + off, "data-stall": loading} for off in NOISE]


def test_the_unchanged_replay_is_the_measured_step_and_without_the_late_rank_it_is_the_next_latest_ones(compared):
    found = compared(steps(20), steps(21), steps(20), steps(20, loading=6.0)).without_late
    assert found.measured_ns == pytest.approx(26.5e6, rel=0.001)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.after_ns == pytest.approx(21.5e6, rel=0.002)


def test_communication_that_takes_longer_hides_part_of_a_lateness(make_profile):
    """Each step: 4 ms of work, a collective of 6 ms beside 4 ms more of work, which one rank begins 1 ms later."""
    ends = [11.0 * (n + 1) for n in range(4)]
    ranks = []
    for n, late in enumerate((0.0, 1.0)):
        p = make_profile(n, [{"compute-forward": 8.0 + late}] * 4, ends)
        start = p.bounds - round((7.0 - late) * 1e6)
        length, covered = p.bounds - start, np.full(4, 4_000_000)
        columns = {"start": start, "length": length, "covered": covered, "alone": length - covered}
        columns |= {"hidden": covered, "queued": np.zeros(4, np.int64), "unlaunched": np.zeros(4, np.int64)}
        fixed = {name: getattr(p.collectives, name) for name in ("kind", "step", "sequence")}
        ranks.append(replace(p, collectives=Collectives(**fixed, **columns)))
    found = replay_steps(ranks, match_collectives(ranks), times_of(ranks), {1: Less(np.full(4, 1e6), (0,))})
    assert (found.measured_ns, found.unchanged_ns, found.after_ns) == (11e6, 11e6, 10e6)


def test_a_pause_is_taken_off_where_it_was_made(make_profile):
    """Each step: 4 ms of work, a collective that is waited for, then 4 ms of work, or 7 on one rank, and another one.

    Taken off before the first collective, the 3 ms would be waited there, since the other rank comes to it at 4 ms.
    """
    ends = [13.0 * (n + 1) for n in range(4)]
    ranks = []
    for n, more in enumerate((0.0, 3.0)):
        p = make_profile(n, [{"compute-forward": 8.0 + more}] * 4, ends)
        begin = np.repeat(np.concatenate([[0], p.bounds[:-1]]), 2)
        start = begin + np.tile([4_000_000, round((9.0 + more) * 1e6)], 4)
        length = np.tile([1_000_000, round((4.0 - more) * 1e6)], 4)
        none = np.zeros(8, np.int64)
        columns = {"start": start, "length": length, "alone": length}
        columns |= dict.fromkeys(("covered", "hidden", "queued", "unlaunched"), none)
        step = np.repeat(np.arange(4, dtype=np.int32), 2)
        held = Collectives(np.zeros(8, np.int32), step, np.full(8, -1), **columns)
        ranks.append(replace(p, collectives=held))
    found = replay_steps(ranks, match_collectives(ranks), times_of(ranks), {1: Less(np.full(4, 3e6), (0,))})
    assert (found.measured_ns, found.unchanged_ns, found.after_ns) == (13e6, 13e6, 10e6)


def test_a_job_without_a_late_rank_is_not_replayed(compared):
    assert compared(steps(20), steps(20), steps(20)).without_late is None
