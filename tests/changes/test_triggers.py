"""The trace that leads to each further change, and the nearly same one that does not."""

from dataclasses import replace

import pytest

from diagnose.changes.common.prescribe import also_possible
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Device
from diagnose.pipeline.run import analyze_captures
from diagnose.tables.program import Program, program_of

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
MB = 1_000_000
A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


def named(r, rule):
    """Return the ids of what is also possible for what the rule finds."""
    finding, t = r.find(rule), r.tables()
    assert finding is not None
    return [p.id for p in also_possible(finding, t.steps.step_ns, program_of(t))]


def loading(late_gap, *, name=LOADING, waits=False, train=True, **loader):
    r = late_gap()
    r.annotation(name, 300, 690)
    if waits:
        r.samples_every(30, 310, 690, ("data.py", 5, "read"), 0)
    if train:
        r.op(BACKWARD, 700, 720)
    if loader:
        r.with_info(loader=loader)
    return r


@pytest.fixture
def late_gap(late):
    return lambda: late


LOCAL = ["load-on-thread", "tune-loader", "cache-samples"]


def test_loading_in_the_training_process(late_gap):
    assert named(loading(late_gap), "data-stall") == LOCAL


def test_loading_that_waits_for_storage(late_gap):
    assert named(loading(late_gap, waits=True), "data-stall") == [*LOCAL, "pack-samples", "stage-locally"]


def test_loading_by_workers_needs_no_thread(late_gap):
    assert named(loading(late_gap, name=WORKERS), "data-stall") == ["tune-loader", "cache-samples"]


def test_a_stream_is_shared_out_unless_it_is_so_already(late_gap):
    stream = {"sampler": "_InfiniteConstantSampler", "num_workers": 0}
    assert named(loading(late_gap, **stream), "data-stall") == ["load-on-thread", "shard-stream"]


def test_a_stream_that_is_shared_out(late_gap):
    known = {"sampler": "_InfiniteConstantSampler", "num_workers": 0, "shares_out": True}
    assert named(loading(late_gap, **known), "data-stall") == ["load-on-thread"]


def test_inference_comes_to_no_sample_twice(late):
    late.annotation(LOADING, 300, 690)
    for at in range(9):
        late.op("aten::linear", 10 + at, 10.5 + at)
    assert named(late, "data-stall") == ["load-on-thread", "tune-loader"]


@pytest.mark.parametrize("server", [False, True])
def test_launches_that_come_too_late_can_be_one_graph(late, server):
    late.op("aten::add", 300, 690)
    if server:
        late.frame("vllm/v1/worker/gpu_worker.py(3): run", 0, 1000)
    assert named(late, "launch-bound") == ([] if server else ["capture-step"])


def test_nothing_is_captured_that_is_a_graph_already(late):
    late.op("aten::add", 300, 690)
    late.runtime("cudaGraphLaunch", 2, 3)
    assert named(late, "launch-bound") == []


def test_pauses_between_kernels_can_be_those_of_a_graph(queued):
    assert named(queued(300, 309), "kernel-latency") == ["capture-step"]


def chain(recording, *ops):
    r = recording()
    r.step(1, 0, 1000)
    for i, op in enumerate(ops):
        r.op(op, -100 + 10 * i, -91 + 10 * i, shapes="[[1000, 1000]]", types='["float"]')
        r.kernel("vectorized_elementwise_kernel", 100 * i, 100 * i + 100, launched=(-98 + 10 * i, -96 + 10 * i))
    r.kernel("gemm", 100 * len(ops), 1000, launched=(-20, -15))
    return r


def test_a_chain_is_an_operator_by_its_parts(recording):
    assert named(chain(recording, "aten::silu", "aten::mul"), "unfused-elementwise") == [
        "patch-operators",
        "call-operator",
    ]
    assert "call-operator" in named(chain(recording, "aten::add", "aten::gelu"), "unfused-elementwise")
    assert named(chain(recording, "aten::sub", "aten::relu"), "unfused-elementwise") == ["patch-operators"]


def test_a_compiled_model_fuses_by_itself(recording):
    r = chain(recording, "aten::add", "aten::gelu")
    r.annotation("Torch-Compiled Region", 0, 1000)
    assert named(r, "unfused-elementwise") == []


def full(recording, *, ranks=1, train=True):
    """Return a step that fills a device of 500 MB: 300 MB of activations, 60 of the optimizer's state."""
    r = recording(devices=[Device(0, "NVIDIA A100", 500 * MB, 108, (8, 0))])
    r.world_size = ranks
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.op("aten::linear", 10, 200)
    r.memory(20, 300 * MB, 1, 400 * MB, reserved=500 * MB)
    if not train:
        for at in range(9):
            r.op("aten::linear", 300 + at, 300.5 + at)
        return r
    r.op("aten::cross_entropy_loss", 210, 220)
    r.op(BACKWARD, 400, 600)
    r.memory(410, 40 * MB, 2, 440 * MB, reserved=500 * MB)
    r.memory(500, -300 * MB, 1, 140 * MB, reserved=500 * MB)
    r.annotation("Optimizer.step#AdamW.step", 700, 800)
    if ranks > 1:
        r.annotation("DistributedDataParallel.forward", 5, 205)
    return r


ALONE = ["offload-activations", "accumulate-gradients", "fused-loss", "eight-bit-optimizer", "offload-optimizer"]


def test_memory_is_freed_by_what_frees_most_first(recording):
    assert named(full(recording), "memory-pressure") == [*ALONE, "find-memory", "find-batch-size"]


def test_ranks_can_share_what_one_holds(recording):
    found = named(full(recording, ranks=4), "memory-pressure")
    assert {"shard-optimizer", "shard-model", "split-layers"} <= set(found)
    assert found[0] == "offload-activations"


def test_inference_has_no_gradients_to_save(recording):
    assert named(full(recording, train=False), "memory-pressure") == ["find-memory", "find-batch-size"]


@pytest.mark.parametrize(("sizes", "grouped"), [((211, 197), True), ((211, 211), False)])
def test_samples_of_unlike_lengths_are_grouped_where_memory_is_full(recording, sizes, grouped):
    r = full(recording)
    r.step(2, 1000, 2000)
    for at, size in zip((300, 1300), sizes, strict=True):
        r.op("aten::mm", at, at + 50, shapes=f"[[{size}, 768], [768, 2304]]")
    assert ("group-lengths" in named(r, "memory-pressure")) is grouped


@pytest.mark.parametrize(
    ("rule", "facts", "program"),
    [
        ("recompilation", {}, Program(trains=True)),
        ("recompilation", {}, Program(trains=False, server="vllm", varying_sizes=frozenset({3}))),
        ("straggler", {"kind": "slow-group", "cause": ""}, Program(varying_sizes=frozenset({3}))),
        ("straggler", {"kind": "late", "cause": "gc-pause"}, Program(varying_sizes=frozenset({3}))),
    ],
)
def test_other_findings_have_nothing_to_do_with_lengths(rule, facts, program):
    finding = Finding(rule, "", 1e6, facts=facts)
    assert "group-lengths" not in [p.id for p in also_possible(finding, 1e7, program)]


@pytest.mark.parametrize(
    ("program", "call"),
    [
        (Program(trains=True, varying_sizes=frozenset({3})), "find_length_batches(dataset, train_step"),
        (Program(trains=False, batch_size=8, varying_sizes=frozenset({3})), "max_samples=8, shuffle=False"),
    ],
)
def test_a_rank_with_longer_samples_gets_batches_of_like_lengths(program, call):
    finding = Finding("straggler", "", 1e6, facts={"kind": "late", "cause": "more-work", "late_rank": 1})
    (p,) = [p for p in also_possible(finding, 1e7, program) if p.id == "group-lengths"]
    assert call in p.after
    assert p.saves_ns == (0.0, 0.0)


def exchanging(recording, *, ranks=4, devices=4, ddp=True, lost=400):
    r = recording(devices=[A100._replace(id=i) for i in range(devices)])
    r.world_size = ranks
    r.step(1, 0, 1000)
    r.op(BACKWARD, 10, 300)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.kernel(ALL_REDUCE, 500, 500 + lost, stream=20, launched=(-14, -11))
    r.kernel("adam", 500 + lost, 1000, launched=(-10, -5))
    for at in range(9):
        r.op("aten::linear", 310 + at, 310.5 + at)
    if ddp:
        r.annotation("DistributedDataParallel.forward", 5, 8)
    return r


ALL_LOSSY = ["low-rank-gradients", "eight-bit-gradients", "top-k-gradients", "one-bit-gradients", "local-sgd"]


def test_an_exchange_that_costs_much(recording):
    ids = named(exchanging(recording), "exposed-communication")
    assert ids == ["tune-buckets", "accumulate-gradients", *ALL_LOSSY]


def test_gradients_wait_for_later_steps_only_where_the_exchange_dominates(recording):
    ids = named(exchanging(recording, lost=200), "exposed-communication")
    assert [i for i in ALL_LOSSY if i in ids] == ["low-rank-gradients", "eight-bit-gradients", "local-sgd"]


def test_little_exchange_costs_no_accuracy(recording):
    ids = named(exchanging(recording, lost=90), "exposed-communication")
    assert ids == ["tune-buckets", "accumulate-gradients"]


def test_ranks_on_several_hosts_reduce_inside_each_first(recording):
    ids = named(exchanging(recording, ranks=16, devices=8), "exposed-communication")
    assert "hierarchical-exchange" in ids
    assert "eight-bit-gradients" not in ids, "sixteen ranks would receive from all others"
    assert {"top-k-gradients", "one-bit-gradients"} <= set(ids)


@pytest.mark.parametrize(
    ("ranks", "fits"),
    [(16, ["top-k-gradients", "one-bit-gradients"]), (56, ["one-bit-gradients"]), (64, [])],
)
def test_so_many_ranks_receive_from_all_others(recording, ranks, fits):
    ids = named(exchanging(recording, ranks=ranks, devices=8), "exposed-communication")
    assert [i for i in ids if i in ("top-k-gradients", "one-bit-gradients")] == fits


def test_the_search_for_unused_parameters_is_left_out_where_it_is_made(recording):
    r = exchanging(recording)
    r.with_info(flags={"ddp": {"find_unused_parameters": True}})
    assert "no-unused-search" in named(r, "exposed-communication")


def test_a_sharded_model_has_no_hooks(recording):
    r = exchanging(recording, ddp=False)
    r.annotation("FullyShardedDataParallel.forward", 5, 8)
    assert named(r, "exposed-communication") == []


def test_small_buckets_are_tuned(recording):
    r = recording()
    r.step(1, 0, 4000)
    r.annotation("DistributedDataParallel.forward", 1, 9)
    for i in range(40):
        r.kernel(ALL_REDUCE, 100 * i, 100 * i + 20, stream=20, launched=(-100 + i, -99.5 + i))
    r.kernel("gemm", 3990, 4000, launched=(-20, -19.5))
    assert named(r, "small-collectives") == ["tune-buckets"]


def test_a_late_rank_gets_smaller_batches(recording):
    def rank(number, comes):
        r = exchanging(recording, ddp=True)
        for row in r.rows:
            if row.name == ALL_REDUCE:
                row.start, row.end = comes, 900
            if row.name == "gemm":
                row.end = comes
        return Capture(replace(r.trace, rank=number, world_size=3))

    found = analyze_captures([rank(0, 300), rank(1, 800), rank(2, 500)])
    assert "balance-ranks" in [p.id for p in found.also_possible]


@pytest.mark.parametrize(("vendor", "ids"), [("NVIDIA", ["profile-kernel"]), ("AMD", [])])
def test_a_slow_kernel_is_looked_into_by_name(recording, vendor, ids):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    bf16 = '["c10::BFloat16", "c10::BFloat16"]'
    r.op("aten::mm", -30, -10, shapes="[[1000, 1560], [1560, 10000]]", types=bf16)
    r.kernel("void gemm_bf16<64, 2>(int)", 0, 900, launched=(-20, -15))
    r.kernel("other", 900, 1000, launched=(-5, -2))
    found = also_possible(r.find("slow-kernel"), 1e6, Program(vendor=vendor))
    assert [p.id for p in found] == ids
    assert all(p.after.startswith("ncu --kernel-name regex:'gemm_bf16' --launch-skip 20 ") for p in found)


def test_fragments_are_looked_for_by_line():
    (p,) = [p for p in also_possible(Finding("memory-fragmentation", "", 0.0), 1e6) if p.id == "find-memory"]
    assert (p.saves_ns, p.predicted_step_ns) == ((0.0, 0.0), None)
