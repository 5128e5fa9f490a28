"""What a trace shows of the program."""

import pytest

from diagnose.model.events import Device
from diagnose.tables.program import program_of

LINEAR = "[[197, 64], [50257, 64], []]"


def stepping(recording, *, steps=1, op="aten::relu", call="cudaLaunchKernel", kernel="gemm", **options):
    """Return steps of 1000 µs, each with twelve operators that launch a kernel each."""
    r = recording(**options)
    for n in range(steps):
        at = 1000 * n
        r.step(n + 1, at, at + 1000)
        for i in range(12):
            start = at + 80 * i
            r.op(op, start, start + 60)
            r.kernel(kernel, start + 20, start + 70, launched=(start + 5, start + 10), call=call)
    return r


def known(r):
    return program_of(r.tables())


def test_operators_without_a_backward_are_inference(recording):
    assert known(stepping(recording)).trains is False
    assert known(stepping(recording, kernel="flash_bwd_dq")).trains is None  # the kernel hints at a backward


@pytest.mark.parametrize("name", ["autograd::engine::evaluate_function: MmBackward0", "CompiledFunctionBackward"])
def test_a_backward_is_training(recording, name):
    r = stepping(recording)
    r.op(name, 970, 990, thread="backward")
    assert known(r).trains is True


def test_an_optimizer_is_training(recording):
    r = stepping(recording)
    r.annotation("Optimizer.step#AdamW.step", 970, 990)
    assert known(r).trains is True


def test_of_too_few_operators_nothing_is_known(late):
    p = known(late)
    assert (p.trains, p.is_ddp, p.has_torch_attention, p.is_compiled, p.has_graphs) == (None, None, None, False, False)


def test_generated_kernels_and_regions_are_a_compiled_model(recording):
    assert known(stepping(recording, kernel="triton_poi_fused_add_0")).is_compiled
    assert known(stepping(recording, op="Torch-Compiled Region: 0/0")).is_compiled
    assert not known(stepping(recording, kernel="triton_attention_kernel")).is_compiled  # written by hand


@pytest.mark.parametrize(
    ("lengths", "grows"), [((8, 9, 10, 11), True), ((8, 8, 8, 8), False), ((8, 20, 31, 47), False)]
)
def test_a_cache_that_grows_piece_by_piece(recording, lengths, grows):
    r = stepping(recording)
    for i, length in enumerate(lengths):
        r.op("aten::cat", 960 + 5 * i, 964 + 5 * i, shapes=f"[[[2, 4, {length}, 16], [2, 4, 1, 16]], []]")
    assert known(r).grows is grows


def test_launches_of_graphs(recording):
    assert known(stepping(recording, call="cudaGraphLaunch")).has_graphs


def test_the_vendor_is_the_devices_or_that_of_the_names(recording):
    amd = (Device(0, "AMD Instinct MI300X", 192 << 30, 304, (9, 4)),)
    assert known(stepping(recording)).vendor == "NVIDIA"
    assert known(stepping(recording, devices=amd)).vendor == "AMD"
    assert known(stepping(recording, devices=(), call="hipLaunchKernel")).vendor == "AMD"


def test_the_batch_is_the_loaders_or_that_of_convolutions(recording):
    r = stepping(recording)
    assert known(r).batch_size is None
    r.op("aten::conv2d", 962, 966, shapes="[[512, 3, 32, 32], [64, 3, 3, 3]]")
    assert known(r).batch_size == 512
    r.with_info(loader={"batch_size": 256})
    assert known(r).batch_size == 256


def test_sizes_of_weights_and_of_what_varies(recording):
    r = stepping(recording, steps=2)
    r.op("aten::linear", 962, 966, shapes=LINEAR)
    r.op("aten::mm", 963, 965, shapes="[[197, 64], [64, 50257]]")
    r.op("aten::mm", 1963, 1965, shapes="[[211, 64], [64, 50257]]")
    assert known(r).layer_sizes == {64, 50257}
    assert known(r).varying_sizes == {197, 211}


@pytest.mark.parametrize(
    ("lengths", "grows"), [((10, 11, 12), True), ((10, 11, 11), False), ((10, 12, 13), False), ((10, 11), False)]
)
def test_what_is_concatenated_grows_by_as_much_in_each_step(recording, lengths, grows):
    r = stepping(recording, steps=len(lengths))
    for i, length in enumerate(lengths):
        at = 1000 * i + 962
        r.op(
            "aten::cat",
            at,
            at + 4,
            shapes=f"[[[8, 4, {length}, 64], [8, 4, 1, 64]], []]",
            types='["TensorList", "Scalar"]',
        )
    assert known(r).grows is grows


def test_an_allocator_without_a_cache_takes_and_frees_all_the_time(recording):
    r, grows = stepping(recording), stepping(recording)
    for i in range(12):
        r.runtime("cudaMalloc", 80 * i + 62, 80 * i + 66)
        r.runtime("cudaFree", 80 * i + 67, 80 * i + 70)
        grows.runtime("cudaMalloc", 80 * i + 62, 80 * i + 66)
    assert known(r).allocator == "uncached"
    assert known(grows).allocator == "caching"
    r.with_info(flags={"allocator": "backend:cudaMallocAsync"})
    assert known(r).allocator == "async"


def test_data_parallel_training_by_its_forward(recording):
    r = stepping(recording)
    assert known(r).is_ddp is False
    r.annotation("DistributedDataParallel.forward", 0, 900)
    assert known(r).is_ddp is True


def test_a_captured_graph_is_a_graph(recording):
    r = stepping(recording)
    r.runtime("cudaStreamBeginCapture", 970, 972)
    assert known(r).has_graphs


def test_a_foreach_copy_is_no_backward(recording):
    copies = "multi_tensor_apply_kernel<TensorListMetadata<2>, UnaryOpFunctor<float, 2, 1, 1>, Copy<float, float> >"
    assert known(stepping(recording, kernel=copies)).trains is False
    assert known(stepping(recording, kernel="multi_tensor_apply_kernel<FusedAdamMathFunctor>")).trains is None


@pytest.mark.parametrize(
    ("frame", "server"),
    [
        ("vllm/v1/worker/gpu_model_runner.py(2907): execute_model", "vllm"),
        ("/work/sglang/python/sglang/srt/model_executor/model_runner.py(3): forward", "sglang"),
        ("vllm_like/v1/worker/x.py(1): f", ""),
    ],
)
def test_a_server_by_its_frames(recording, frame, server):
    r = stepping(recording)
    r.frame(frame, 0, 1000)
    assert known(r).server == server


def test_a_loader_by_its_annotation(recording):
    r = stepping(recording)
    assert known(r).has_loader is False
    r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 970, 990)
    assert known(r).has_loader is True


def test_what_it_computes_and_in_which_attention(recording):
    assert known(stepping(recording, op="aten::conv2d")).heavy == {"convolution"}
    assert known(stepping(recording, op="aten::linear")).heavy == {"product"}
    p = known(stepping(recording, op="aten::_scaled_dot_product_flash_attention"))
    assert (p.heavy, p.attention_backends) == (set(), {"flash"})
    assert known(stepping(recording, op="aten::_scaled_dot_product_attention_math")).attention_backends == {"math"}
