"""Collectives of all ranks scheduled otherwise: hand-made steps whose numbers a reader can add up."""

import numpy as np
import pytest

from diagnose.ranks.profile import CollectiveKind
from diagnose.ranks.replay import Collective, Part, Schedule, Step, in_buckets, overlapped, replayed

US, MS = 1e3, 1e6
ONCE = 20 * US  # of a collective, whatever it carries
MEGABYTE = 1_000_000


def bucket(num_bytes, rate, *parts, purpose="ddp-bucket", name="all_reduce"):
    """Return a collective of ranks that come when they have done so much, and wait for it then or never."""
    kind = CollectiveKind(0, name, num_bytes, purpose=purpose)
    return Collective(kind, ONCE + num_bytes / rate, tuple(Part(r, *each) for r, each in enumerate(parts)))


def schedule(*collectives, own, backward):
    ranks = np.zeros(len(own))
    step = Step(collectives, np.array(own), np.array(backward), ranks, ())
    return Schedule((step, step), (1, 2), 0.0)


def step_ns(made):
    return replayed(made, made).unchanged_ns


@pytest.fixture
def one_bucket():
    """Two ranks: forward 2 ms, backward 4 ms, or 5 on the second; then 8 MB in 8.02 ms, and 1 ms of optimizer."""
    parts = ((6 * MS, 6 * MS), (7 * MS, 7 * MS))
    return schedule(bucket(8 * MEGABYTE, 1.0, *parts), own=(7 * MS, 8 * MS), backward=(4 * MS, 5 * MS))


def test_a_bucket_starts_when_the_last_rank_has_filled_it(one_bucket):
    assert step_ns(one_bucket) == pytest.approx(7 * MS + ONCE + 8 * MS + 1 * MS)
    as_recorded, halves = in_buckets(one_bucket, 4 * MEGABYTE)
    assert step_ns(as_recorded) == step_ns(one_bucket)
    # The second rank has filled the first half at 2 + 2.5 ms: 4.5 + 2 × 4.02 + 1.
    assert step_ns(halves) == pytest.approx(4.5 * MS + 2 * (ONCE + 4 * MS) + 1 * MS)


def test_a_size_that_holds_all_gives_the_recorded_step(one_bucket):
    assert step_ns(in_buckets(one_bucket, 8 * MEGABYTE)[1]) == pytest.approx(step_ns(one_bucket))
    assert step_ns(in_buckets(one_bucket, 1e12)[1]) == pytest.approx(step_ns(one_bucket))


def test_larger_buckets_than_the_recorded_ones_wait_for_the_end_of_the_backward():
    first, last = ((4 * MS, None), (4 * MS, None)), ((6 * MS, 6 * MS), (6 * MS, 6 * MS))
    recorded = schedule(
        bucket(MEGABYTE, 1.0, *first), bucket(MEGABYTE, 1.0, *last), own=(7 * MS,) * 2, backward=(4 * MS,) * 2
    )
    assert step_ns(recorded) == pytest.approx(6 * MS + ONCE + 1 * MS + 1 * MS)
    assert step_ns(in_buckets(recorded, 2 * MEGABYTE)[1]) == pytest.approx(6 * MS + ONCE + 2 * MS + 1 * MS)


def test_a_bucket_goes_behind_what_a_member_came_to_before():
    """Layers exchange at 3 ms and are waited for; the bucket is full then too, and carries 8 ms."""
    at = 3 * MS
    shared = bucket(MEGABYTE, 1.0, (at, at), (at, at), purpose="tensor-parallel")
    full = bucket(8 * MEGABYTE, 1.0, (at, 6 * MS), (at, 6 * MS))
    recorded = schedule(shared, full, own=(6 * MS,) * 2, backward=(3 * MS,) * 2)
    same = in_buckets(recorded, 8 * MEGABYTE)[1]
    assert [c.kind.purpose for c in same.steps[0].collectives] == ["tensor-parallel", "ddp-bucket"]
    assert step_ns(same) == pytest.approx(step_ns(recorded))


@pytest.mark.parametrize(
    ("num_bytes", "purpose", "backward"),
    [(-1, "ddp-bucket", 4 * MS), (MEGABYTE, "tensor-parallel", 4 * MS), (MEGABYTE, "ddp-bucket", 0.0)],
)
def test_without_sizes_buckets_or_a_backward_nothing_is_cut(num_bytes, purpose, backward):
    parts = ((6 * MS, 6 * MS), (6 * MS, 6 * MS))
    made = bucket(num_bytes, 1.0, *parts, purpose=purpose)
    assert in_buckets(schedule(made, own=(7 * MS,) * 2, backward=(backward,) * 2), MEGABYTE) is None


def waiting(name, purpose):
    """Three collectives of 1.02 ms, each waited for where it begins, at 2, 4 and 6 of 7 ms."""
    made = [
        bucket(MEGABYTE, 1.0, (at * MS, at * MS), (at * MS, at * MS), purpose=purpose, name=name) for at in (2, 4, 6)
    ]
    return schedule(*made, own=(7 * MS,) * 2, backward=(4 * MS,) * 2)


@pytest.mark.parametrize(
    ("name", "purpose"), [("all_reduce", "ddp-bucket"), ("reduce_scatter", "fsdp-scatter"), ("reduce_scatter", "")]
)
def test_reductions_beside_the_backward_are_waited_for_once(name, purpose):
    recorded = waiting(name, purpose)
    assert step_ns(recorded) == pytest.approx(7 * MS + 3 * (ONCE + 1 * MS))
    assert step_ns(overlapped(recorded, name)) == pytest.approx(7 * MS + ONCE + 1 * MS)


def test_a_gather_begins_when_the_one_before_it_does():
    # The first one, at 2 ms, has none before it; the others take 1.02 of the 2 ms until they are needed.
    recorded = waiting("all_gather", "fsdp-gather")
    assert step_ns(recorded) == pytest.approx(7 * MS + 3 * (ONCE + 1 * MS))
    assert step_ns(overlapped(recorded, "all_gather")) == pytest.approx(7 * MS + ONCE + 1 * MS)


@pytest.mark.parametrize(
    ("name", "purpose", "asked"),
    [
        ("all_reduce", "tensor-parallel", "all_reduce"), ("all_reduce", "", "all_reduce"),
        ("reduce_scatter", "fsdp-scatter", "all_gather"), ("all_gather", "tensor-parallel", "all_gather"),
    ],
)  # fmt: skip
def test_what_is_needed_at_once_is_not_overlapped(name, purpose, asked):
    assert overlapped(waiting(name, purpose), asked) is None


def test_where_nobody_waits_nothing_is_overlapped():
    made = bucket(MEGABYTE, 1.0, (2 * MS, None), (2 * MS, None))
    assert overlapped(schedule(made, own=(7 * MS,) * 2, backward=(4 * MS,) * 2), "all_reduce") is None
