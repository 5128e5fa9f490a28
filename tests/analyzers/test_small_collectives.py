"""small-collectives: more than 10 a step of under 100 µs, with nothing beside them."""

import pytest

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def reducing(recording, num=40, length=20, *, name=ALL_REDUCE, hidden=False):
    """Return a step of 4000 µs with ``num`` collectives, one every 100 µs."""
    r = recording()
    r.step(1, 0, 4000)
    for i in range(num):
        r.kernel(name, 100 * i, 100 * i + length, stream=20, launched=(-100 + i, -99.5 + i))
    r.kernel("gemm", 0 if hidden else 3990, 4000, launched=(-20, -19.5))
    return r


def test_forty_of_twenty_microseconds(recording):
    r = reducing(recording)
    finding = r.find("small-collectives")
    assert (finding.lost_ns, finding.count, finding.median_ns) == (pytest.approx(800_000), 40, 20_000)
    assert finding.evidence[0] == ("40 collectives of 20 µs at the median a step; nothing hides 800 µs of them.")
    assert [p.id for p in r.prescribe("small-collectives")] == ["bucket-gradients"]
    assert r.diagnosis().partition.exposed_communication == pytest.approx(0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"num": 10},
        {"length": 100},
        {"num": 35, "length": 1},
        {"hidden": True},
        {"name": "gemm"},
        {"name": "void deep_ep::internode_ll::dispatch<true>(int4*)"},  # goes into no bucket
    ],  # 1: under 1 % of the step
)
def test_what_is_left_to_others(recording, change):
    assert reducing(recording, **change).find("small-collectives") is None
