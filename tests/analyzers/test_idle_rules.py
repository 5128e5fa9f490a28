"""Rules on recorded traces, most of them of idle time: each is checked against the events that prove it."""

import numpy as np
import pytest


def finding(recorded, name, rule):
    return next(f for f in recorded.diagnoses[name].findings if f.rule == rule)


def share(recorded, name, rule):
    return finding(recorded, name, rule).lost_ns / recorded.diagnoses[name].step_ns


def called(recorded, name, *words):
    """Return how long (ns per step) events of the window whose name holds all of the words took."""
    t = recorded.tables[name]
    rows = t.in_window(np.arange(len(t.trace.events)))
    named = np.array([all(word in t.name(int(row)) for word in words) for row in rows], bool)
    mine = rows[named]
    return float((t.trace.events.end - t.trace.events.start)[mine].sum()) / t.steps.num


def test_loading_is_as_long_as_the_loader_was_asked(recorded):
    found = finding(recorded, "kineto_rn50_nw0_a", "data-stall")
    loading = called(recorded, "kineto_rn50_nw0_a", "DataLoader", "__next__")
    assert 0.5 * loading < found.lost_ns <= loading
    assert (found.where[0].file, found.where[0].line) == ("resnet50_profiler_api.py", 42)


def test_starting_up_is_no_longer_than_its_calls(recorded):
    found = finding(recorded, "hta_alexnet_a100", "warm-up")
    assert 0.4 < called(recorded, "hta_alexnet_a100", "cudaFree") / found.lost_ns < 1
    assert found.evidence[1].startswith("cudaFree: 5 calls")


def test_syncs_are_the_blocking_calls_before_the_gaps(recorded):
    found = finding(recorded, "param_dlrm_v100_r7", "host-sync")
    assert 0 < found.lost_ns <= called(recorded, "param_dlrm_v100_r7", "ProfilerStep")
    assert "cudaStreamSynchronize" in found.evidence[1]
    assert found.where[0].op == "## sparse_data_dist ##"


def test_launching_fills_what_a_small_model_leaves_idle(recorded):
    assert share(recorded, "hta_mlp_gp100", "launch-bound") > 0.9
    assert finding(recorded, "hta_mlp_gp100", "launch-bound").evidence[1].startswith("27 launches a step; 100 %")


def test_an_exchange_that_nothing_hides(recorded):
    found = finding(recorded, "param_dlrm_v100_r1", "exposed-communication")
    assert found.lost_ns <= called(recorded, "param_dlrm_v100_r1", "nccl", "Kernel") + 20_000
    assert "8.0 collectives a step" in found.evidence[0]


def test_an_optimizer_that_goes_tensor_by_tensor(recorded):
    found = finding(recorded, "param_dlrm_v100_r4", "unfused-optimizer")
    assert found.lost_ns <= called(recorded, "param_dlrm_v100_r4", "Optimizer.step#")
    assert "64 launches per call" in found.evidence[1]


def test_pageable_copies_of_batches(recorded):
    found = finding(recorded, "kineto_rn50_nw4_a", "exposed-copy")
    assert "12 of 12 pageable" in found.evidence[0]
    assert (found.where[0].line, found.where[0].op) == (44, "aten::to")


def test_python_between_operators_has_its_line(recorded):
    found = finding(recorded, "tl_timesformer_h100", "python-stall")
    assert (found.where[0].file or "").endswith("adapters/pipeline/model.py")
    assert found.where[0].library == "transformers/image_transforms.py:390 in normalize"


def test_one_allocation_is_as_long_as_its_call(recorded):
    found = finding(recorded, "edge_cuda_event_sync_multi", "allocator-stall")
    assert found.lost_ns <= called(recorded, "edge_cuda_event_sync_multi", "cudaMalloc")


@pytest.mark.parametrize(
    ("name", "rule", "low", "high"),
    [
        ("ao_vit_bf16_a100", "kernel-latency", 0.05, 0.12),
        ("hta_dlrm_sampled_r1", "host-compute", 0.04, 0.08),
        ("tl_vllm_eager_b200", "small-collectives", 0.01, 0.04),
        ("tl_bert_small_h100", "memory-headroom", 0.0, 0.0),
    ],
)
def test_smaller_causes_keep_their_size(recorded, name, rule, low, high):
    assert low <= share(recorded, name, rule) <= high


def test_float32_products_take_what_their_kernels_take(recorded):
    found = finding(recorded, "luatil_gpt_compile", "full-precision-matmul")
    products = called(recorded, "luatil_gpt_compile", "sgemm")
    total = found.total_ns / recorded.tables["luatil_gpt_compile"].steps.num  # other single-precision kernels too
    assert products <= total < 1.5 * products
    assert 0 < found.lost_ns < products
