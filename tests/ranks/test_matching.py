"""The same collective on several ranks: by number, by ends, with pieces missing."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import TRAITS
from diagnose.ranks.comparison import compare_ranks, job_of
from diagnose.ranks.matching import match_collectives
from diagnose.ranks.profile import CollectiveKind, Collectives, Group, JobProfile

OWN = [{"compute-forward": 8.0} for _ in range(12)]
ENDS = [10.0 * (n + 1) + 0.3 * (n % 5) for n in range(12)]
GROUP = Group("3", "mesh_dp", 3, (0, 1, 2))


def without(profile, *rows):
    """Return the profile without some of its collectives."""
    keep = np.array([i not in rows for i in range(len(profile.collectives))])
    columns = {name: getattr(profile.collectives, name)[keep] for name in Collectives.__slots__}
    return replace(profile, collectives=Collectives(**columns))


def numbered(profile, first):
    number = np.arange(first, first + len(profile.collectives))
    return replace(profile, collectives=replace(profile.collectives, sequence=number))


def sizes(matches):
    return np.bincount(matches.match).tolist()


@pytest.mark.parametrize("apart_ms", [0.0, 3.0, -700.0])
def test_ends_lay_clocks_over_each_other(make_profile, apart_ms):
    found = match_collectives([make_profile(0, OWN, ENDS), make_profile(1, OWN, ENDS, clock=apart_ms)])
    assert sizes(found) == [2] * 12
    assert found.residual_ns == 0


def test_the_residual_is_of_the_ranks_that_share_collectives(make_profile):
    ranks = [make_profile(n, OWN, ENDS) for n in range(4)]
    ranks[1] = without(ranks[1], *range(12))
    notes = compare_ranks(JobProfile.of(ranks), TRAITS).notes
    assert "12 collectives were matched across ranks 0, 2 and 3; the ends of one lie 0 µs apart (median)." in notes


def test_one_missing_collective_costs_that_one_only(make_profile):
    ranks = [make_profile(n, OWN, ENDS) for n in range(3)]
    ranks[1] = without(ranks[1], 4)
    found = match_collectives(ranks)
    assert sizes(found) == [3, 3, 3, 3, 2, *[3] * 7]
    assert found.num_unmatched == 0


def test_a_rank_whose_file_ends_early_is_compared_up_to_there(make_profile):
    ranks = [make_profile(n, OWN, ENDS) for n in range(3)]
    ranks[2] = replace(without(ranks[2], *range(5, 12)), is_cut=True)
    assert sizes(match_collectives(ranks)) == [*[3] * 5, *[2] * 7]
    assert (
        "The trace of rank 2 is cut off: the ranks are compared up to there."
        in compare_ranks(JobProfile.of(ranks), TRAITS).notes
    )


def test_numbers_in_a_group_decide_where_they_are_recorded(make_profile):
    one = numbered(make_profile(0, OWN, ENDS, group=GROUP), 40)
    other = numbered(without(make_profile(1, OWN, ENDS, group=GROUP), 0), 41)
    found = match_collectives([one, other])
    assert sizes(found) == [2] * 11
    assert found.groups[0] == GROUP


def test_groups_of_the_same_name_and_other_members_are_apart(make_profile):
    ranks = [
        numbered(make_profile(n, OWN, ENDS, group=Group("1", "tp", 2, (n // 2 * 2, n // 2 * 2 + 1))), 0)
        for n in range(4)
    ]
    found = match_collectives(ranks)
    assert sizes(found) == [2] * 24
    assert {g.members for g in found.groups} == {(0, 1), (2, 3)}


def test_what_has_the_number_of_another_and_another_size_is_left_out(make_profile):
    ranks = [numbered(make_profile(n, OWN, ENDS, group=GROUP), 0) for n in range(3)]
    ranks[2] = replace(ranks[2], kinds=(replace(ranks[2].kinds[0], num_bytes=77),))
    found = match_collectives(ranks)
    assert (sizes(found), found.num_disagreeing) == ([2] * 12, 12)


def test_ranks_whose_ends_lie_apart_share_nothing(make_profile):
    rng = np.random.default_rng(5)
    others = np.cumsum(rng.uniform(3.0, 40.0, 12)).tolist()
    found = compare_ranks(JobProfile.of([make_profile(0, OWN, ENDS), make_profile(1, OWN, others)]), TRAITS)
    assert found.matches.num <= 2
    assert found.lateness.late == ()


# Four ranks of gloo on two busy cores: ms at which each left its six collectives, of steps of 90 ms.
ON_BUSY_CORES = (
    (179.8, 285.1, 372.2, 457.1, 555.5, 638.1),
    (184.4, 279.4, 371.4, 461.6, 551.6, 638.4),
    (179.9, 274.0, 369.5, 457.2, 549.2, 640.3),
    (177.5, 279.3, 372.2, 455.1, 551.5, 636.4),
)


@pytest.mark.parametrize(("has_device", "num_of_four"), [(False, 6), (True, 1)])
def test_ends_on_busy_cores_lie_apart_by_a_tenth_of_the_step(make_profile, has_device, num_of_four):
    own = [{"compute-forward": 8.0} for _ in range(6)]
    ranks = [make_profile(n, own, ends, begins=90.0, has_device=has_device) for n, ends in enumerate(ON_BUSY_CORES)]
    assert sizes(match_collectives(ranks)).count(4) == num_of_four


@pytest.mark.parametrize(
    "foreign",
    [
        {"step_number": np.arange(50, 62)},
        {"epoch_ns": 3_600 * 10**9},
        {"kinds": (CollectiveKind(0, "all_gather", 1 << 20, 1 << 20, "float"),)},
        {"world_size": 64},
        {"run_id": "other"},
    ],
)
def test_of_two_files_of_a_rank_the_one_is_kept_that_agrees_with_the_other_ranks(make_profile, foreign):
    known = {"epoch_ns": 10**9, "run_id": "this"}
    ranks = [make_profile(n, OWN, ENDS, **known) for n in range(3)]
    other = make_profile(0, OWN, ENDS, **{**known, **foreign, "path": "foreign.json", "num_events": 5000})
    found = compare_ranks(JobProfile.of([*ranks, other]), TRAITS)
    assert [p.path for p in found.ranks] == ["rank0.json", "rank1.json", "rank2.json"]
    assert any("foreign.json" in note for note in found.notes)


@pytest.mark.parametrize("group", [Group(), Group("0", "default_pg", 16, tuple(range(16))), Group(size=16)])
def test_of_a_group_of_which_few_members_are_given_nothing_is_claimed(make_profile, group):
    late = [{"compute-forward": 8.0 + 0.5 * n} for n in range(2)]
    ranks = [make_profile(n, [late[n]] * 12, ENDS, group=group, world_size=16) for n in range(2)]
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.matches.num, found.matches.num_sampled) == (0, 12)
    assert (found.collectives, found.waits_ns, found.lateness.late) == ((), {}, ())
    assert [(row.late_ns, row.blame_share, row.begins_ns) for row in job_of(found).rows] == [(None, 0.0, 0.0)] * 2
    assert "12 collectives are of groups that lack more than half of their ranks: who waits" in "".join(found.notes)


def test_groups_that_are_complete_among_few_ranks_count(make_profile):
    ranks = []
    for n in range(2):
        p = make_profile(n, OWN, ENDS, group=Group("0", "default_pg", 16, tuple(range(16))), world_size=16)
        pair = Group("tp0", "mesh_tp", 2, (0, 1))
        kinds = (*p.kinds, replace(p.kinds[0], group=1))
        held = replace(p.collectives, kind=np.arange(12, dtype=np.int32) % 2)
        ranks.append(numbered(replace(p, groups=(*p.groups, pair), kinds=kinds, collectives=held), 0))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.matches.num, found.matches.num_sampled) == (6, 6)
    assert {g.name for g in found.matches.groups} == {"tp0"}
    assert [c.group_size for c in found.collectives] == [2]
    assert not any("on one rank only" in note or "lie apart" in note for note in found.notes)


def test_ranks_that_recorded_other_steps_another_job_or_twice_are_named(make_profile):
    ranks = [make_profile(n, OWN, ENDS) for n in range(2)]
    later = replace(make_profile(2, OWN, ENDS), step_number=np.arange(50, 62))
    foreign = make_profile(3, OWN, ENDS, world_size=64)
    twice = replace(make_profile(1, OWN, ENDS), path="copy.json", num_events=10)
    found = compare_ranks(JobProfile.of([*ranks, later, foreign, twice], ["rank9.json is empty."]), TRAITS)
    assert [p.rank for p in found.ranks] == [0, 1]
    text = "\n".join(found.notes)
    assert "rank9.json is empty." in text
    assert "rank3.json is of a job of another size" in text
    assert "rank1.json and copy.json are both of rank 1; the first was used" in text
    assert "Rank 2 recorded steps 50 to 61 and the others 0 to 11" in text
    assert found.matches.num == 12
