"""full-sort: kernels that sort take 8 % of the busy time. Times in µs."""

import pytest

SORT = "void at::native::radixSortKVInPlace<2, -1, 128, 32, float, long, unsigned int>"


def sorting(recording, took, name=SORT):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_what_a_selection_would_take_is_kept(recording):
    finding = sorting(recording, 100).find("full-sort")
    assert (finding.lost_ns, finding.count) == (pytest.approx(70_000), 1)
    assert [p.id for p in sorting(recording, 100).prescribe("full-sort")] == ["select-top-k"]


@pytest.mark.parametrize(("took", "fires"), [(79, False), (81, True)])
def test_eight_hundredths_of_the_busy_time(recording, took, fires):
    assert (sorting(recording, took).find("full-sort") is not None) == fires


def test_the_sort_of_an_embeddings_backward_pass_is_not_the_scripts(recording):
    r = sorting(recording, 100)
    r.op("autograd::engine::evaluate_function: EmbeddingBackward0", -25, -10)
    assert r.find("full-sort") is None


def test_other_kernels_do_not_count(recording):
    assert sorting(recording, 100, "add_kernel").find("full-sort") is None


@pytest.mark.parametrize(("took", "lost"), [(79, None), (100, 70_000)])
def test_operators_that_sort_without_a_device(recording, took, lost):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::sort", 0, took)
    r.op("aten::mm", took, 1000)
    finding = r.find("full-sort")
    assert (None if finding is None else finding.lost_ns) == (lost if lost is None else pytest.approx(lost))
