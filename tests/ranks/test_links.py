"""What collectives cost: waiting and transfer apart, bandwidth, a group whose links are slow."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import TRAITS
from diagnose.analyzers.straggler import find_in_all
from diagnose.ranks.comparison import compare_ranks
from diagnose.ranks.profile import CollectiveKind, Collectives, Group, JobProfile

NUM = 6


def test_waiting_and_transfer_are_told_apart(compared):
    found = compared([{"compute-forward": 9.0}] * NUM, [{"compute-forward": 7.0}] * NUM, transfer=0.5)
    (kind,) = found.collectives
    assert kind.transfer_ns == 500_000
    assert kind.waiting_ns == kind.exposed_waiting_ns == pytest.approx(1e6)  # 2 ms on one of two ranks
    # 1 MiB in 0.5 ms; an all-reduce of two ranks carries as much over the link
    assert kind.algorithm_gbps == pytest.approx(2.097, abs=0.001)
    assert kind.bus_gbps == pytest.approx(kind.algorithm_gbps)
    assert (kind.per_step, kind.hidden_share) == (1.0, 0.0)


@pytest.mark.parametrize(("slow_ms", "found_slow"), [(2.0, True), (1.1, False)])
def test_a_group_with_slow_links_is_named(make_profile, slow_ms, found_slow):
    ranks = []
    for n in range(6):
        members = (n // 2 * 2, n // 2 * 2 + 1)
        transfer = slow_ms if members == (2, 3) else 1.0
        ends = np.cumsum([9.0 + transfer] * NUM).tolist()
        ranks.append(
            make_profile(n, [{"compute-forward": 9.0}] * NUM, ends, group=Group(f"tp{n // 2}", "tp", 2, members))
        )
    slow = compare_ranks(JobProfile.of(ranks), TRAITS).slow_group
    assert (slow is not None) == found_slow
    if slow is not None:
        assert (slow.members, slow.num_others, slow.ratio) == ((2, 3), 2, pytest.approx(2.0))
        assert slow.more_ns == pytest.approx(1e6)
        assert slow.others_gbps == pytest.approx(2 * slow.bus_gbps)


def test_an_uneven_all_to_all_names_who_exchanges_most(make_profile):
    ranks = []
    for n, megabytes in enumerate((10, 10, 10, 30)):
        kinds = (CollectiveKind(0, "all_to_all", megabytes << 20, purpose="all-to-all"),)
        own = [{"compute-forward": 8.0 if n == 3 else 6.0}] * NUM
        ranks.append(make_profile(n, own, np.cumsum([9.0] * NUM).tolist(), kinds=kinds))
    found = {f.facts["kind"]: f.title for f in find_in_all(compare_ranks(JobProfile.of(ranks), TRAITS))}
    assert found["uneven-exchange"] == "All-to-all is uneven: rank 3 exchanges 2.0 × as much as the mean"


def test_stages_of_a_pipeline_wait_in_bubbles_and_nobody_is_called_late(make_profile):
    """Two stages of unequal layers: the first sends, the second receives, and neither has an equal."""
    ranks = []
    for n, (name, own) in enumerate((("send", 6.0), ("recv", 3.0))):
        kinds = (CollectiveKind(0, name, 1 << 20, purpose="pipeline", source=0, target=1),)
        spent = [{"compute-forward": own}] * NUM
        ranks.append(make_profile(n, spent, np.cumsum([6.5] * NUM).tolist(), kinds=kinds, world_size=2))
    compared = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert compared.lateness.late == ()
    (bubbles,) = find_in_all(compared)
    assert (
        bubbles.title == "Stages of the pipeline wait for each other: bubbles of 1.50 ms a step"
    )  # 3 ms on one of two


def test_collectives_that_one_member_lacks_make_no_groups_of_their_own(make_profile):
    """Six ranks of one unnamed group; two lack a collective each, so that those are of other sets of five."""
    ends = np.cumsum([10.0, 10.0, 14.0, 10.0, 10.0, 10.0]).tolist()
    ranks = [make_profile(n, [{"compute-forward": 9.0}] * NUM, ends) for n in range(6)]
    for lacking, row in ((5, 2), (4, 4)):
        held = ranks[lacking].collectives
        columns = {name: np.delete(getattr(held, name), row) for name in Collectives.__slots__}
        ranks[lacking] = replace(ranks[lacking], collectives=Collectives(**columns))
    assert compare_ranks(JobProfile.of(ranks), TRAITS).slow_group is None


@pytest.mark.parametrize(
    ("name", "num_bytes", "num_bytes_out", "factor", "size"),
    [
        # As nccl-tests count them among four ranks (PERFORMANCE.md); the size is that of the whole operation.
        ("all_reduce", 4_000_000, 4_000_000, 2 * 3 / 4, 4_000_000),
        ("reduce_scatter", 4_000_000, 1_000_000, 3 / 4, 4_000_000),
        ("all_gather", 1_000_000, 4_000_000, 3 / 4, 4_000_000),
        ("all_to_all", 4_000_000, 4_000_000, 3 / 4, 4_000_000),
        ("broadcast", 4_000_000, 4_000_000, 1.0, 4_000_000),
    ],
)
@pytest.mark.parametrize(("link", "host", "peak"), [(300.0, "a", 300.0), (0.0, "a", 0.0), (300.0, "", 0.0)])
def test_bus_bandwidth_is_that_of_nccl_tests(
    make_profile, name, num_bytes, num_bytes_out, factor, size, link, host, peak
):
    kind = CollectiveKind(0, name, num_bytes, num_bytes_out, "float")
    more = {"kinds": (kind,), "link_gbps": link, "host": host}
    own = [[{"compute-forward": 8.0}] * 3 for _ in range(4)]
    ranks = [make_profile(n, own[n], (10.0, 20.0, 30.0), **more) for n in range(4)]
    (found,) = compare_ranks(JobProfile.of(ranks), TRAITS).collectives
    took = 2_000_000  # ns, of each
    assert found.transfer_ns == took
    assert found.algorithm_gbps == pytest.approx(size / took)
    assert found.bus_gbps == pytest.approx(size / took * factor)
    assert found.peak_gbps == peak
