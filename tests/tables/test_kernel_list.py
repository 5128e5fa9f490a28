"""The device's kernels: family, calls, time, share, type, share of the peak, place."""

import pytest

from diagnose.pipeline.code_times import kernel_families, kernel_times


@pytest.fixture
def r(recording):
    r = recording()
    r.step(1, 0, 1000)
    return r


def listed(r):
    return [row for row, _ in kernel_times(r.tables(), 10)]


def test_kernels_of_one_name_are_one_entry(r):
    r.kernel("sgemm", 0, 300, launched=(-20, -15))
    r.kernel("sgemm", 300, 600, launched=(-10, -5))
    r.kernel("softmax_warp_forward", 600, 800)
    found = kernel_times(r.tables(), 10)
    assert [(k.name, k.family, k.calls_per_step, k.time_ns, k.share) for k, _ in found] == [
        ("sgemm", "gemm", 2, 600_000, 0.75),
        ("softmax_warp_forward", "softmax", 1, 200_000, 0.25),
    ]
    assert [launch >= 0 for _, launch in found] == [True, False]


def test_what_is_not_listed_is_one_entry_and_the_shares_sum_to_one(r):
    for i in range(20):
        r.kernel(f"k{i}", 50 * i, 50 * i + 10)
    found = listed(r)
    assert len(found) == 11
    assert (found[-1].name, found[-1].calls_per_step, found[-1].time_ns) == ("10 others", 10, 100_000)
    assert sum(k.share for k in found) == pytest.approx(1)


def test_families_count_all_kernels_that_compute_however_many_names_they_have(r):
    for i in range(20):
        r.kernel(f"sgemm_{i}", 20 * i, 20 * i + 20)
    r.kernel("void mine<float>(int)", 400, 500)
    for i in range(5):
        r.kernel(f"tiny{i}", 500 + 5 * i, 505 + 5 * i)
    r.kernel("ncclDevKernel_AllReduce", 600, 900)
    families = kernel_families(r.tables())
    assert list(families) == ["gemm", "mine", "unclassified kernels"]
    assert list(families.values()) == pytest.approx([400 / 525, 100 / 525, 25 / 525])


def test_a_recording_without_kernels_that_compute_has_no_families(r):
    r.kernel("ncclDevKernel_AllReduce", 600, 900)
    assert kernel_families(r.tables()) == {}


@pytest.mark.parametrize(
    ("op", "kernel", "types", "dtype"),
    [
        ("aten::mm", "gemm", '["c10::BFloat16","c10::BFloat16"]', "bfloat16"),
        ("aten::mm", "ampere_s1688gemm_tf32", '["float","float"]', "tf32"),
        ("aten::index", "gather", '["long int","float"]', "float32"),
        ("Torch-Compiled Region: 0/0", "ampere_sgemm_128x64", '["long int"]', "float32"),
        ("Torch-Compiled Region: 0/0", "triton_poi_fused_add", '["long int"]', ""),
        ("c10d::alltoall_base_", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "", ""),  # bytes of any type
        ("c10d::allreduce_", "ncclKernel_AllReduce_RING_LL_Sum_int8_t", "", "int8"),
    ],
)
def test_the_type_is_that_of_the_inputs_or_of_the_name(r, op, kernel, types, dtype):
    r.op(op, -30, 0, shapes="[[64,64],[64,64]]", types=types)
    r.kernel(kernel, 0, 300, launched=(-20, -15))
    assert [k.dtype for k in listed(r)] == [dtype]


def test_the_share_of_the_peak_where_shapes_show_it(r):
    r.op("aten::mm", -30, 0, shapes="[[4096,4096],[4096,4096]]", types='["c10::BFloat16","c10::BFloat16"]')
    r.kernel("gemm", 0, 881, launched=(-20, -15))  # 2 x 4096^3 operations at 312 TFLOP/s take 440.5 µs
    assert listed(r)[0].peak_share == pytest.approx(0.5, abs=0.01)


def test_without_shapes_there_is_a_list_too(r):
    r.kernel("gemm", 0, 300)
    assert [(k.name, k.share, k.peak_share, k.dtype) for k in listed(r)] == [("gemm", 1, None, "")]


def test_without_a_device_there_is_none(r):
    r.op("aten::mm", 0, 100)
    assert listed(r) == []
