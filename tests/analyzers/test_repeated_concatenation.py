"""repeated-concatenation: kernels of cat take a fifth of the busy time. Times in µs."""

import pytest

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"


def joining(recording, took, name=CAT):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_what_it_costs(recording):
    finding = joining(recording, 300).find("repeated-concatenation")
    assert (finding.lost_ns, finding.count) == (pytest.approx(300_000), 1)
    assert [p.id for p in joining(recording, 300).prescribe("repeated-concatenation")] == ["preallocate"]


@pytest.mark.parametrize(("took", "fires"), [(199, False), (201, True)])
def test_a_fifth_of_the_busy_time(recording, took, fires):
    assert (joining(recording, took).find("repeated-concatenation") is not None) == fires


def test_other_copies_do_not_count(recording):
    assert joining(recording, 300, "direct_copy_kernel_cuda").find("repeated-concatenation") is None
