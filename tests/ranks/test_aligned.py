"""The timelines of some ranks on one clock: times are what a reader can add up, in ms."""

from diagnose.analyzers import TRAITS
from diagnose.ranks.aligned import aligned_step
from diagnose.ranks.comparison import compare_ranks, job_of
from diagnose.ranks.profile import JobProfile

MS = 1e6
ENDS = (10.0, 20.0, 30.0)


def compared_of(make_profile, clocks, loading=4.0):
    """Rank 0 loads for 4 ms longer than its equals; the clock of each rank is off by so much."""
    own = [[{"compute-forward": 5.0, "data-stall": loading if n == 0 else 0.0}] * 3 for n in range(len(clocks))]
    known = {"world_size": len(clocks)}
    ranks = [make_profile(n, own[n], ENDS, clock=clock, **known) for n, clock in enumerate(clocks)]
    return compare_ranks(JobProfile.of(ranks), TRAITS)


def test_clocks_are_laid_over_each_other_and_waiting_ends_when_the_last_comes(make_profile):
    c = compared_of(make_profile, (0.0, 400.0, -70.0))
    found = aligned_step(c.ranks, c.matches, c.waits, {0: "late", 1: "median", 2: "fastest"})
    assert found is not None
    assert found.step == 1
    assert [(r.rank, r.part) for r in found.ranks] == [(0, "late"), (1, "median"), (2, "fastest")]
    assert [(r.begin_ns, r.end_ns) for r in found.ranks] == [(0.0, 10 * MS)] * 3
    times = [[(c.start_ns, c.waiting_ns, c.transfer_ns) for c in r.collectives] for r in found.ranks]
    assert times == [[(9 * MS, 0.0, 1 * MS)], [(5 * MS, 4 * MS, 1 * MS)], [(5 * MS, 4 * MS, 1 * MS)]]
    assert [r.causes for r in found.ranks] == [(("data-stall", 4 * MS),), (), ()]


def test_one_rank_has_no_timelines(make_profile):
    c = compared_of(make_profile, (0.0, 0.0, 0.0))
    assert aligned_step(c.ranks, c.matches, c.waits, {0: "late"}) is None


def test_of_more_ranks_than_rows_the_worst_are_kept_and_counted(make_profile):
    job = job_of(compared_of(make_profile, (0.0,) * 70))
    assert (len(job.rows), job.num_rows) == (64, 70)
    assert job.rows[0].rank == 0
    assert job.late_ranks == (0,)
