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
    assert finding.evidence[0] == "1 kernel a step: 100 µs of it, 10 % of the busy time."
    assert finding.where[0].op == "aten::copy_"
    assert [p.id for p in r.prescribe("layout-copy")] == ["no-contiguous"]


def test_a_copy_that_the_script_calls_comes_before_what_other_operators_copy_after_it(recording):
    r = reordering(recording, took=100, op="aten::contiguous")
    r.op("aten::conv2d", -9, -4, shapes=SHAPES, types='["float", "float", ""]')
    r.kernel(COPY, 1000, 1300, launched=(-8, -6))
    r.step(2, 1000, 1300)
    assert [where.op for where in r.find("layout-copy").where] == ["aten::contiguous", "aten::conv2d"]


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


HALF_TO_BFLOAT16 = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(int)::{lambda(c10::BFloat16)#1},"
    " at::native::memory::LoadWithCast<1>>"
)


def converting(recording, num=3, *, producer="kDequantizeBlockwise<__half>", wrote=90, inside="MatMul4Bit"):
    """Return a step of 1000 busy µs in which ``num`` kernels of 90 µs each write what a cast of 100 µs converts."""
    r = recording()
    r.step(1, 0, 1000)
    for i in range(num):
        at, host = 250 * i, -300 + 50 * i
        r.op(inside, host, host + 40)
        r.op("aten::to", host + 10, host + 30)
        r.op("aten::copy_", host + 11, host + 29)
        r.kernel(producer, at, at + wrote, launched=(host + 1, host + 4))
        r.kernel(HALF_TO_BFLOAT16, at + wrote, at + wrote + 100, launched=(host + 15, host + 20))
        r.kernel("gemm", at + wrote + 100, at + 250, launched=(host + 32, host + 36))
    r.kernel("gemm", 250 * num, 1000, launched=(-5, -2))
    return r


def test_a_cast_of_what_one_kernel_writes_again_and_again(recording):
    r = converting(recording)
    finding = r.find("layout-copy")
    assert (finding.lost_ns, finding.count, finding.confidence) == (pytest.approx(300_000), 3, "low")
    assert finding.title == "Tensors are converted to another type as soon as they are made"
    assert finding.where[0].op == "MatMul4Bit"
    (p,) = r.prescribe("layout-copy")
    assert p.id == "emit-type"
    assert "dequantize(packed, dtype=torch.bfloat16)" in p.after
    assert p.saves_ns == (pytest.approx(30_000), pytest.approx(300_000))


@pytest.mark.parametrize(
    "change",
    [
        {"num": 2},  # once or twice is a decision
        {"inside": "aten::linear"},  # autocast's
        {"inside": "autograd::engine::evaluate_function: ToCopyBackward0"},
        {"inside": "Optimizer.step#AdamW.step"},  # master copies
        {"wrote": 20},  # too short to have written what the cast reads
        {"producer": "ncclDevKernel_AllReduce_Sum_f16_RING_LL"},
    ],
)
def test_casts_that_are_not_the_producers(recording, change):
    assert converting(recording, **change).find("layout-copy") is None


def test_casts_within_a_graph(recording):
    r = recording()
    r.step(1, 0, 1000)
    nodes = []
    for i in range(3):
        for name, begin, end in (("rms_norm_kernel", 0, 90), (HALF_TO_BFLOAT16, 90, 190), ("gemm", 190, 250)):
            nodes.append(r.kernel(name, 250 * i + begin, 250 * i + end))
    nodes.append(r.kernel("gemm", 750, 1000))
    r.runtime("cudaGraphLaunch", -10, -5, launches=nodes)
    finding = r.find("layout-copy")
    assert finding.title == "Tensors are converted to another type as soon as they are made, in a CUDA graph"
    assert (finding.lost_ns, finding.confidence) == (pytest.approx(300_000), "low")


def around_a_graph(recording, num=8, *, op="aten::copy_", between="aten::fill_", name=COPY):
    """Return a step of 1000 busy µs: copies of 20 µs, an operator, a graph of 300 µs, and as many copies again."""
    r = recording()
    r.step(1, 0, 1000)
    for i in range(num):
        for first, at in ((-500, 20 * i), (-200, 20 * (num + i) + 310)):
            host = first + 20 * i
            r.op(op, host, host + 15, shapes=SHAPES, types='["float", "float", ""]')
            r.kernel(name, at, at + 20, launched=(host + 5, host + 10))
    r.op(between, -300, -290)
    r.kernel("fill", 20 * num, 20 * num + 10, launched=(-299, -295))
    node = r.kernel("gemm", 20 * num + 10, 20 * num + 310)
    r.runtime("cudaGraphLaunch", -280, -270, launches=[node])
    r.kernel("gemm", 40 * num + 310, 1000, launched=(-5, -2))
    return r


def test_copies_around_the_launch_of_a_graph(recording):
    r = around_a_graph(recording)
    finding = r.find("layout-copy")
    assert (finding.lost_ns, finding.count, finding.confidence) == (pytest.approx(320_000), 16, "medium")
    assert finding.title == "CUDA graphs copy their inputs and outputs at each launch"
    assert "right before or after 1 launch of CUDA graphs a step" in finding.evidence[1]
    (p,) = r.prescribe("layout-copy")
    assert (p.id, p.safety) == ("static-graph-inputs", "same numbers")
    assert p.saves_ns == (pytest.approx(0.1 * 320_000), pytest.approx(0.95 * 320_000))


def test_a_compiled_model_is_compiled_with_graphs_that_copy_less(recording):
    r = around_a_graph(recording)
    r.op("CompiledFunction", 10, 900)
    (p,) = r.prescribe("layout-copy")
    assert p.id == "static-graph-inputs"
    assert 'mode="reduce-overhead"' in p.after


def test_copies_before_another_operator_do_not_belong_to_the_graph(recording):
    """Those behind it do: 8 of them."""
    found = around_a_graph(recording, between="aten::mul").find("layout-copy")
    assert found.count == 8


@pytest.mark.parametrize("change", [{"num": 7}, {"op": "aten::add"}, {"name": CAST}])
def test_what_is_no_copy_of_a_graphs_inputs(recording, change):
    r = around_a_graph(recording, **change)
    found = r.find("layout-copy")
    assert found is None or found.title == "Tensors are copied into another order"
