"""layout-copy: kernels that only reorder."""

import pytest

COPY = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(..."
CAST = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda, memory::LoadWithCast<1>>"
SHAPES = "[[8, 4], [8, 4], []]"


def reordering(recording, name=COPY, took=100, *, types='["float", "float", ""]', op="aten::copy_"):
    """Return a step of 1000 busy µs with ``took`` of them in a copy kernel."""
    r = recording()
    r.step(1, 0, 1000)
    r.op(op, -30, -10, shapes=SHAPES, types=types)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_a_copy_of_one_type_only_reorders(recording):
    r = reordering(recording)
    finding = r.find("layout-copy")
    assert (finding.lost_ns, finding.count) == (pytest.approx(100_000), 1)
    assert finding.title == "Tensors are copied into another order"
    assert finding.evidence[0] == "1 kernels a step take 0.10 ms of it, 10% of the busy time."
    assert finding.where[0].op == "aten::copy_"
    assert [p.id for p in r.prescribe("layout-copy")] == ["no-contiguous"]


@pytest.mark.parametrize("name", ["cudnn::ops::nchwToNhwcKernel<float>", "batched_transpose_16x32_half"])
def test_conversions_of_the_libraries(recording, name):
    r = reordering(recording, name, op="aten::cudnn_convolution")
    assert r.find("layout-copy").title == "Images are converted between memory layouts"
    assert [p.id for p in r.prescribe("layout-copy")] == ["channels-last"]


@pytest.mark.parametrize(
    "change",
    [
        {"types": '["c10::BFloat16", "float", ""]'},  # a cast computes
        {"name": CAST, "types": "[]"},
        {"took": 40},  # less than 5 % of the busy time
        {"name": "vectorized_elementwise_kernel<AddFunctor>"},
    ],
)
def test_what_is_no_reordering(recording, change):
    assert reordering(recording, **change).find("layout-copy") is None
