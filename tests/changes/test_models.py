"""Prescriptions whose effect follows from a model of the device, replayed."""

import numpy as np
import pytest

from diagnose.changes.common.prescribe import effect_of
from diagnose.changes.compressed_gradients import HALVED
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.events import Device
from diagnose.replay import Edge, simulate
from diagnose.replay.build import build

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


def effect_in(t, finding, name, shares):
    """Return the effect of a prescription that takes these shares of the finding away."""
    saves_ns = (shares[0] * finding.lost_ns, shares[1] * finding.lost_ns)
    return effect_of(t, finding, Prescription(finding.rule, name, "", "", "", saves_ns, None, ""))


def length(t, change=None):
    graph = build(t)
    return simulate(change(graph) if change else graph).window_ns


@pytest.mark.parametrize(("took_us", "reached"), [(4000, (0.4, 1.0)), (8000, (0.4, 0.7)), (20_000, (0.2, 0.7))])
def test_float32_products_take_what_the_next_precision_leaves_them(recording, took_us, reached):
    # 2 · 2000 · 1950 · 10000 operations: 4 ms at 19.5 TFLOP/s, 0.5 ms at TF32's 156, 0.25 ms at bfloat16's 312
    r = recording(devices=[A100])
    r.step(1, 0, 10)  # the host is done long before the device
    r.op("aten::mm", 0, 3, shapes="[[2000, 1950], [1950, 10000]]", types='["float", "float"]')
    r.kernel("ampere_sgemm_128x64_nn", 0, took_us, launched=(1, 2))
    t = r.tables()
    half_ns = took_us * 500
    finding = Finding("full-precision-matmul", "", half_ns, tasks=np.zeros(1, np.intp), total_ns=2 * half_ns)
    for identity, best in (("allow-tf32", 500_000), ("autocast", 250_000)):
        effect = effect_in(t, finding, identity, (0.4, 1.0))
        assert length(t, effect.least) == pytest.approx(best / reached[0], rel=0.02)
        assert length(t, effect.most) == pytest.approx(best / reached[1], rel=0.02)
        assert effect.limit_ns == 2 * half_ns, "of half the time only the rule speaks that knows no shapes"
        assert effect.assumption.startswith("100 % of the float32 products")


@pytest.mark.parametrize(("identity", "launches"), [("fused-optimizer", (8, 2)), ("foreach-optimizer", (40, 12))])
def test_updates_that_are_merged_leave_the_pauses_between_them_out(recording, identity, launches):
    r = recording(devices=[A100])
    r.step(1, 0, 310)
    r.annotation("Optimizer.step#Adam.step", 0, 110)
    for i in range(100):
        r.kernel("vectorized_elementwise_kernel", 3 * i + 5, 3 * i + 6, launched=(i, i + 1))
    t = r.tables()
    graph = build(t)
    effect = effect_in(t, Finding("unfused-optimizer", "", 100_000, facts={"launches": 100}), identity, (0.5, 1.0))
    pauses = [change(graph).delay[graph.kind == Edge.STREAM].sum() for change in (effect.least, effect.most)]
    assert graph.delay[graph.kind == Edge.STREAM].sum() == 99 * 2_000
    assert pauses == pytest.approx([share / 100 * 99 * 2_000 for share in launches])


def test_without_the_second_forward_its_launches_go_too(recording):
    # The host needs 380 for the backward, of which the second forward takes 200; the device waits for it. The Python
    # around its operator, from 10 and to 230, goes with it.
    r = recording(devices=[A100])
    r.step(1, 0, 400)
    r.op("autograd::engine::evaluate_function: MmBackward0", 10, 390)
    r.op("aten::linear", 20, 210)
    r.kernel("gemm", 210, 240, launched=(200, 205))
    r.op("aten::mm", 230, 388)
    r.kernel("gemm", 390, 400, launched=(380, 385))
    t = r.tables()
    finding = Finding("recompute", "", 30_000, tasks=np.zeros(1, np.intp))
    effect = effect_in(t, finding, "checkpoint-less", (0.0, 1.0))
    assert length(t) - length(t, effect.least) == pytest.approx(165_000)  # three quarters of the blocks
    assert length(t) - length(t, effect.most) == pytest.approx(220_000)


@pytest.mark.parametrize(("name", "left"), [("allow-tf32", (250, 125)), ("autocast", (250, 62.5))])
def test_without_shapes_the_ratio_of_the_peaks_tells(recording, name, left):
    # 19.5 TFLOP/s in float32, 156 in TF32, 312 in 16 bits
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("ampere_sgemm_128x64_nn", 0, 1000, launched=(1, 2))
    t = r.tables()
    finding = Finding("full-precision-matmul", "", 500_000, tasks=np.zeros(1, np.intp), total_ns=1_000_000)
    effect = effect_in(t, finding, name, (0.4, 1.0))
    assert (length(t, effect.least), length(t, effect.most)) == pytest.approx((left[0] * 1000, left[1] * 1000))
    assert effect.limit_ns == 1_000_000


def test_sixteen_bits_spare_bytes_but_no_latency(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("gemm", 0, 580, launched=(1, 2))
    r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 580, 1000, launched=(3, 4))
    t = r.tables()
    effect = effect_in(t, Finding("exposed-communication", "", 420_000), "compress-gradients", (0.2, 0.5))
    # 420 µs of which 20 are latency
    assert length(t, effect.least) == pytest.approx(1_000_000 - HALVED[0] * 400_000)
    assert length(t, effect.most) == pytest.approx(1_000_000 - HALVED[1] * 400_000)


def test_copies_ahead_hold_nothing_up(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.copy("Memcpy HtoD (Pageable -> Device)", 0, 400, size=1000, launched=(1, 2))
    r.kernel("gemm", 400, 900, launched=(3, 4))
    r.copy("Memcpy DtoH (Device -> Pageable)", 900, 1000, size=1000, launched=(5, 6))
    t = r.tables()
    effect = effect_in(t, Finding("exposed-copy", "", 500_000), "prefetch-to-device", (0.5, 1.0))
    # The batch is there at the begin: kernel and copy to the host remain, from the kernel's launch on.
    assert length(t, effect.most) == length(t, effect.least) == pytest.approx(603_000)


def test_no_change_saves_more_than_its_finding_costs(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 1000, launched=(3, 4))
    effect = effect_in(r.tables(), Finding("exposed-communication", "", 100_000), "compress-gradients", (0.2, 0.5))
    assert effect.limit_ns == 100_000


def test_graphs_leave_a_fixed_cost_per_step_and_no_launches(recording):
    # Two steps of 4 ms: 40 operators of 100 µs, each launching a kernel of 10 µs.
    r = recording(devices=[A100])
    for number in range(2):
        begin = number * 4000
        r.step(number + 1, begin, begin + 4000)
        for i in range(40):
            at = begin + i * 100
            r.op("aten::relu", at, at + 100)
            r.kernel("relu", at + 95, at + 105, launched=(at + 85, at + 90))
    t = r.tables()
    [finding] = [f for f in r.diagnosis().findings if f.rule == "launch-bound"]
    effect = effect_in(t, finding, "compile-graphs", (0.3, 0.9))
    assert length(t, effect.most) == pytest.approx(2 * 400_000, rel=0.15)  # the kernels alone
    assert length(t, effect.least) == pytest.approx(2 * 2_000_000, rel=0.05)  # half of the operators stay
    assert effect.assumption.startswith("Of 4.00 ms a step in operators")
    assert "2 % to 50 %" in effect.assumption or "3 % to 50 %" in effect.assumption


def test_loading_and_the_optimizer_stay_outside_of_graphs(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 3000)
    r.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 1000)
    for at in range(1000, 2000, 100):
        r.op("aten::relu", at, at + 100)
        r.kernel("relu", at + 95, at + 105, launched=(at + 85, at + 90))
    r.annotation("Optimizer.step#AdamW.step", 2000, 3000)
    for at in range(2000, 3000, 100):
        r.op("aten::add_", at, at + 100)
        r.kernel("add", at + 95, at + 105, launched=(at + 85, at + 90))
    t = r.tables()
    effect = effect_in(t, Finding("launch-bound", "", 1_000_000), "compile-graphs", (0.3, 0.9))
    assert effect.assumption.startswith("Of 1.00 ms a step in operators")
    # of 1000 µs 50 stay for guards, and 0.3 for each of 20 kernels
    assert length(t, effect.most) == pytest.approx(length(t) - 944_000, rel=0.02)


@pytest.mark.parametrize(
    ("identity", "host", "device"), [("fused-optimizer", 20, 2 / 3), ("foreach-optimizer", 120, 0)]
)
def test_an_update_takes_what_its_few_launches_take(recording, identity, host, device):
    # 100 launches of 10 µs; kernels of 2 µs, the last one of 302: 300 µs of it are traffic, not start-up.
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    r.annotation("Optimizer.step#AdamW.step", 0, 1000)
    for i in range(99):
        r.kernel("add", i * 10 + 7, i * 10 + 9, launched=(i * 10, i * 10 + 5))
    r.kernel("add", 997, 1299, launched=(990, 995))
    t = r.tables()
    finding = Finding("unfused-optimizer", "", 1_300_000, facts={"launches": 100.0})
    effect = effect_in(t, finding, identity, (0.5, 1.0))
    assert length(t, effect.most) == pytest.approx(1000 * (host + 300 * (1 - device)), rel=0.1)
    assert length(t, effect.least) > length(t, effect.most)


def test_an_update_without_known_launches_goes_by_its_share(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    r.kernel("add", 6, 10, launched=(0, 5))
    effect = effect_in(r.tables(), Finding("unfused-optimizer", "", 500_000), "fused-optimizer", (0.5, 1.0))
    assert "50 %" in effect.assumption


@pytest.mark.parametrize(("frees", "share"), [(2, 1.0), (1, 1 - 0.5 * 120 / 140), (0, 0.0)])
def test_memory_that_still_grows_is_taken_all_the_same(recording, frees, share):
    # Two calls of 60 take memory, and as many of 20 give it back, or fewer: what exceeds them stays at least.
    r = recording()
    r.step(1, 0, 400)
    r.kernel("a", 10, 20, launched=(1, 2))
    for i in range(2):
        r.runtime("cudaMalloc", 100 + 80 * i, 160 + 80 * i)
    for i in range(frees):
        r.runtime("cudaFree", 160 + 80 * i, 180 + 80 * i)
    r.kernel("b", 280, 400, launched=(270, 275))
    t = r.tables()
    taken_ns = 120_000 + 20_000 * frees
    effect = effect_in(t, Finding("allocator-stall", "", taken_ns), "expandable-segments", (0.0, 1.0))
    saved = [length(t) - length(t, change) for change in (effect.least, effect.most)]
    assert saved == pytest.approx([share * taken_ns, taken_ns])


def reading(recording):
    """Return two steps whose value is read: the host waits to 60, and its operator takes 45 beside the wait."""
    r = recording(devices=[A100])
    for at in (0, 100):
        r.step(at // 100 + 1, at, at + 100)
        r.kernel("gemm", at + 10, at + 50, launched=(at + 2, at + 5))
        r.op("aten::item", at + 10, at + 75)
        r.runtime("cudaStreamSynchronize", at + 30, at + 60)
        r.kernel("relu", at + 95, at + 98, launched=(at + 88, at + 90))
    return r.tables()


def test_a_value_that_is_not_read_costs_no_operator_either(recording):
    t = reading(recording)
    effect = effect_in(t, Finding("host-sync", "", 35_000), "defer-sync", (0.2, 1.0))
    assert length(t) - length(t, effect.least) == pytest.approx(2 * 30_000, abs=4_000)
    assert length(t) - length(t, effect.most) == 104_000  # the kernels, 40 + 3 a step, hold it now


def test_without_compiling_kernels_for_all_sizes_take_longer_at_least(recording):
    # The host compiles for 180 and takes 220 for the rest; the kernel takes 200, for all sizes 240, which then hold it.
    r = recording(devices=[A100])
    for at in (0, 400, 800):
        r.step(at // 400 + 1, at, at + 400)
        r.op("entire_frame_compile", at, at + 180)
        r.kernel("gemm", at + 200, at + 400, launched=(at + 190, at + 195))
    t = r.tables()
    effect = effect_in(t, Finding("recompilation", "", 180_000), "stop-recompiling", (0.5, 1.0))
    assert (length(t), length(t, effect.most)) == (1_200_000, 1_200_000 - 3 * 180_000)
    assert length(t, effect.least) == 20_000 + 3 * 240_000


def test_reductions_in_buckets_spare_start_ups_and_calls(recording):
    # 20 reductions of 10 us, each called for 50 us one after the other: two buckets leave two of each.
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    for i in range(20):
        at = 50 * i
        r.op("c10d::allreduce_", at, at + 50)
        r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 50, at + 60, stream=20, launched=(at + 40, at + 45))
    t = r.tables()
    finding = Finding("small-collectives", "", 200_000, tasks=np.arange(20, dtype=np.intp))
    effect = effect_in(t, finding, "bucket-gradients", (0.3, 1.0))
    assert effect.assumption == "2 to 5 collectives a step carry what 20 carry now."
    assert length(t) - length(t, effect.most) == pytest.approx(0.9 * 1_000_000, rel=0.02)
    assert length(t) - length(t, effect.least) == pytest.approx(0.75 * 1_000_000, rel=0.02)


@pytest.mark.parametrize(
    ("rule", "name", "ops", "share"),
    [
        ("unfused-elementwise", "compile-model", ("mul", "add", "tanh", "mul"), 0.4),
        ("unfused-attention", "fused-attention", ("bmm", "div", "_softmax", "bmm"), 0.5),
    ],
)
def test_what_is_fused_is_issued_once_with_the_python_between(recording, rule, name, ops, share):
    # Four operators of 60 us on the host, 40 us of Python between them, kernels of 6: the host holds the step. One of
    # the operators stays; from the end of the first to the end of the last are 300 us.
    r = recording(devices=[A100])
    r.step(1, 0, 500)
    for i, op in enumerate(ops):
        at, kernel = 100 * i, "gemm" if op == "bmm" else f"vectorized_elementwise_kernel_{op}"
        r.op(f"aten::{op}", at, at + 60)
        r.kernel(kernel, at + 56, at + 62, launched=(at + 50, at + 53))
    r.kernel("gemm", 495, 500, launched=(488, 490))
    t = r.tables()
    tasks = np.arange(4, dtype=np.intp) if rule == "unfused-elementwise" else np.arange(1, 3, dtype=np.intp)
    effect = effect_in(t, Finding(rule, "", 18_000, count=1, tasks=tasks), name, (0.4, 1.0))
    after = [length(t, effect.least), length(t, effect.most)]
    assert after == pytest.approx([length(t) - us * 1000 for us in (share * 300, 300)], rel=0.03)


def test_products_of_fused_attention_move_no_scores(recording):
    # The scale reads and writes the scores in 40 us; a product of 50 does one of the two, in 20. At most these go too.
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    ran = [("bmm", 10, 60), ("div", 60, 100), ("_softmax", 100, 150), ("bmm", 150, 200)]
    for i, (op, begin, end) in enumerate(ran):
        r.op(f"aten::{op}", i, i + 0.9)
        r.kernel(f"kernel_{op}", begin, end, launched=(i + 0.2, i + 0.5))
    t = r.tables()
    finding = Finding("unfused-attention", "", 90_000, count=1, tasks=np.arange(1, 3, dtype=np.intp))
    effect = effect_in(t, finding, "fused-attention", (0.5, 1.0))
    assert length(t) - length(t, effect.least) == pytest.approx(45_000, abs=1000)
    assert length(t) - length(t, effect.most) == pytest.approx(90_000 + 2 * 20_000, abs=1000)


def test_a_pageable_copy_is_at_least_pinned_and_stays_in_its_place(recording):
    # 3 MB in 500 us hold the host and the kernel behind them; pinned they take 0.24 ms at 40 % of 31.5 GB/s.
    r = recording(devices=[A100])
    for at in (0, 1000, 2000):
        r.step(at // 1000 + 1, at, at + 1000)
        r.copy("Memcpy HtoD (Pageable -> Device)", at + 10, at + 510, size=3_000_000, launched=(at, at + 512))
        r.kernel("gemm", at + 530, at + 995, launched=(at + 520, at + 525))
    t = r.tables()
    effect = effect_in(
        t, Finding("exposed-copy", "", 500_000, facts={"num": 3, "to_host": 0}), "prefetch-to-device", (0, 1)
    )
    pinned = 3_000_000 / (0.4 * 31.5)
    # The kernels' launches go on beside the copies: 32 µs each.
    assert length(t) - length(t, effect.least) == pytest.approx(3 * (532_000 - pinned), rel=0.01)
    assert length(t, effect.most) < length(t, effect.least) - 2 * 100_000


def test_batches_of_a_loader_are_copied_ahead_at_least_too(recording):
    r = recording(devices=[A100])
    for number in range(3):
        at = number * 1000
        r.step(number + 1, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + 5)
        r.copy("Memcpy HtoD (Pageable -> Device)", at + 10, at + 510, size=3_000_000, launched=(at + 6, at + 512))
        r.kernel("gemm", at + 530, at + 995, launched=(at + 520, at + 525))
    found = Finding("exposed-copy", "", 500_000, facts={"num": 3, "to_host": 0})
    effect = effect_in(r.tables(), found, "prefetch-to-device", (0, 1))
    assert effect.least.is_ahead
    assert effect.assumption.startswith(
        "Copies to the device run a batch ahead on a side stream, from pinned memory at 13"
    )
