"""memset-traffic: fills take 5 % of the busy time."""

import pytest

from diagnose.model.events import Kind


def filling(recording, took=100, *, memset=False, name="void at::native::vectorized_elementwise_kernel<4, FillFunctor"):
    r = recording()
    r.step(1, 0, 1000)
    task = r.kernel("Memset (Device)" if memset else name, 0, took, launched=(-20, -15))
    task.kind = Kind.MEMSET if memset else Kind.KERNEL
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


@pytest.mark.parametrize("memset", [False, True])
def test_fills(recording, memset):
    r = filling(recording, memset=memset)
    finding = r.find("memset-traffic")
    assert (finding.lost_ns, finding.count, finding.total_ns) == (pytest.approx(100_000), 1, 100_000)
    assert [p.id for p in r.prescribe("memset-traffic")] == ["no-fills"]


@pytest.mark.parametrize(("took", "fires"), [(49, False), (51, True)])
def test_a_twentieth_of_the_busy_time(recording, took, fires):
    assert (filling(recording, took).find("memset-traffic") is not None) == fires


def test_other_kernels_do_not_count(recording):
    assert filling(recording, name="vectorized_elementwise_kernel<4, AddFunctor").find("memset-traffic") is None
