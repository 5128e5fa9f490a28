"""Advice fits the program: what was once printed to those whom it did not fit."""

import re
from dataclasses import replace

import pytest

from diagnose.changes.common.prescribe import is_worth_showing, prescribe
from diagnose.model.diagnosis import Example, Finding, Where
from diagnose.pipeline.rank import analyze_rank
from diagnose.tables.program import Program

INFERENCE, TRAINING = Program(trains=False), Program(trains=True)


def advised(rule, program, **fields):
    return prescribe(Finding(rule, "", 1e6, **fields), 1e7, program)


def ids(rule, program, **fields):
    return [p.id for p in advised(rule, program, **fields)]


def launching(recording, *, call="cudaLaunchKernel", kernel="gemm", **options):
    """Return a step whose kernels wait for the operators that launch them."""
    r = recording(**options)
    r.step(1, 0, 1000)
    for i in range(12):
        r.op("aten::relu", 80 * i, 80 * i + 75)
        r.kernel(kernel, 80 * i + 62, 80 * i + 70, launched=(80 * i + 55, 80 * i + 60), call=call)
    return r


def test_a_compiled_model_is_not_to_be_compiled(recording):
    assert "Compile the model" in launching(recording).prescribe("launch-bound")[0].title
    (p,) = launching(recording, kernel="triton_poi_fused_add_0").prescribe("launch-bound")
    assert p.title == "Replay the compiled model's launches as one CUDA graph"
    assert p.before == "model = torch.compile(model)"
    assert (
        ids("kernel-latency", Program(is_compiled=True)) == ids("unfused-elementwise", Program(is_compiled=True)) == []
    )


def test_launches_of_graphs_are_not_to_be_captured(recording):
    assert launching(recording, call="cudaGraphLaunch").prescribe("launch-bound") == []


@pytest.mark.parametrize(
    ("program", "padded"),
    [
        (Program(), "50304"),
        (Program(layer_sizes=frozenset({50257, 768})), "50304"),
        (Program(layer_sizes=frozenset({768})), None),
        (Program(varying_sizes=frozenset({50257})), None),
    ],
)
def test_only_sizes_of_weights_are_padded(program, padded):
    found = advised("misaligned-matmul", program, facts={"size": 50257, "padded_size": 50304})
    assert [f"Use {padded} instead" in p.title for p in found] == [True] * bool(padded)


def test_a_larger_batch_is_larger_than_the_recorded_one():
    (p,) = advised("memory-headroom", Program(trains=True, batch_size=512))
    assert (p.before, "batch_size=1024" in p.after) == ("DataLoader(dataset, batch_size=512)", True)
    assert "learning rate" in p.after
    (p,) = advised("memory-headroom", Program(trains=False, batch_size=8))
    assert "learning rate" not in p.after
    assert "trains" not in p.safety
    (p,) = advised("memory-headroom", Program())
    assert "batch_size=2 * batch_size" in p.after


def test_cudnn_is_nvidias():
    assert "CUDNN" in advised("slow-kernel", Program(vendor="NVIDIA"), facts={"attention": True})[0].after
    assert "CUDNN" not in advised("slow-kernel", Program(vendor="AMD"), facts={"attention": True})[0].after
    assert ids("slow-kernel", Program(has_torch_attention=False), facts={"attention": True}) == []


@pytest.mark.parametrize("program", [Program(vendor="AMD"), Program(allocator="uncached"), Program(allocator="async")])
def test_segments_that_cannot_grow(program):
    assert ids("allocator-stall", Program(allocator="caching")) == ["expandable-segments"]
    others = {"AMD": ["round-allocations"], "": ["cache-device-memory"] * (program.allocator == "uncached")}
    assert ids("allocator-stall", program) == others["AMD" if program.vendor == "AMD" else ""]


@pytest.mark.parametrize("allocator", ["uncached", "async"])
def test_sizes_are_rounded_where_the_caching_allocator_hands_out(allocator):
    assert "round-allocations" not in ids("allocator-stall", Program(vendor="AMD", allocator=allocator))


@pytest.mark.parametrize("rule", ["throttled", "device-contention"])
def test_commands_are_those_of_the_vendor(rule):
    (p,) = advised(rule, Program(vendor="AMD"))
    assert "nvidia" not in p.before + p.after


@pytest.mark.parametrize(
    ("op", "host", "wanted"),
    [
        ("aten::item", "aten::item > aten::_local_scalar_dense", "defer-sync"),
        ("aten::nonzero", "", "stay-on-device"),
        ("aten::is_nonzero", "aten::is_nonzero > aten::item", "stay-on-device"),
        (None, "loss > aten::index > aten::nonzero > cudaStreamSynchronize", "stay-on-device"),
    ],
)
def test_a_wait_for_a_shape_cannot_come_later(op, host, wanted):
    example = Example(1, 0, 1, "", "", host)
    assert ids("host-sync", TRAINING, where=(Where(op=op),), examples=(example,)) == [wanted]


@pytest.mark.parametrize(
    ("place", "facts"),
    [
        (Where("model.py", 3, "forward", caller="module"), {}),
        (Where("train.py", 3, "weights"), {"in_pass": 0.6, "after_read": 1.0}),
        (Where("train.py", 3, "weights"), {"in_pass": 0.6, "waiting_share": 0.1}),
    ],
)
def test_what_the_step_needs_at_once_does_not_go_to_a_thread_or_a_process(place, facts):
    (p,) = advised("python-stall", TRAINING, where=(place,), facts=facts)
    assert p.title.startswith(f"Vectorise the Python work at {place.file}:3")
    assert not re.search("Executor|Dataset|thread", p.after)
    (p,) = advised("python-stall", TRAINING, where=(Where("train.py", 3, "weights"),), facts={**facts, "in_pass": 0.4})
    assert not p.title.startswith("Vectorise")


EXCHANGE = {"has_device": True, "ddp": {"bucket_cap_mb": 500.0}}


def test_gradients_are_exchanged_in_data_parallel_training_only():
    assert ids("exposed-communication", Program(trains=True, is_ddp=True), facts=EXCHANGE) == [
        "overlap-gradients",
        "compress-gradients",
    ]
    assert ids("exposed-communication", Program(trains=True, is_ddp=False), facts=EXCHANGE) == []
    assert ids("exposed-communication", INFERENCE, facts=EXCHANGE) == []
    assert ids("small-collectives", INFERENCE, facts={"one_by_one": True}) == []
    narrow = Program(trains=True, is_ddp=True, exchanged=frozenset({"bfloat16"}))
    assert ids("exposed-communication", narrow, facts=EXCHANGE) == ["overlap-gradients"]


@pytest.mark.parametrize("rule", ["unfused-optimizer", "recompute", "scatter-atomics"])
def test_inference_has_no_gradients(rule):
    assert ids(rule, TRAINING, facts={"indexed": True})
    assert ids(rule, INFERENCE, facts={"indexed": True}) == []


FACTS = {"full-precision-matmul": {"has_tf32": False}, "exposed-copy": {"to_host": 1, "num": 1}}


@pytest.mark.parametrize("rule", ["full-precision-matmul", "host-sync", "exposed-copy", "memset-traffic", "gc-pause",
                                  "straggler", "layout-copy", "host-collective"])  # fmt: skip
def test_advice_for_inference_names_nothing_of_training(rule):
    for p in advised(rule, INFERENCE, facts=FACTS.get(rule, {"is_conversion": True})):
        for word in ("loss", "backward", "optimizer", "learning", "train_step", "DistributedDataParallel"):
            assert word not in p.before + p.after + p.title + p.safety, p.id


def test_python_of_the_optimizer_stays_where_it_is():
    assert ids("python-stall", TRAINING, where=(Where(op="Optimizer.step#SGD.step"),)) == []


def test_a_scaler_unscales_before_gradients_are_clipped():
    p = advised("full-precision-matmul", TRAINING, facts={"has_tf32": False})[0]
    lines = [line.split("(")[0] for line in p.after.splitlines()]
    assert lines.index("scaler.unscale_") == lines.index("scaler.step") - 1


def test_workers_repeat_an_iterable_dataset_that_does_not_share():
    stream = {"single_process": True, "sampler": "_InfiniteConstantSampler", "waits": True, "waiting_share": 0.9}
    (p,) = advised("data-stall", TRAINING, facts=stream)  # threads, too, need samples that can be asked for
    assert p.safety.startswith("may change the numbers: every worker runs through the whole IterableDataset")
    assert "get_worker_info" in p.after
    (p,) = advised("data-stall", TRAINING, facts={**stream, "single_process": False, "num_workers": 2})
    assert "get_worker_info" in p.after


def test_what_is_saved_in_the_background_shares_no_memory():
    (p,) = advised("python-stall", TRAINING, where=(Where("train.py", 3, "main"),), facts={"waiting_share": 0.9})
    code = p.after
    assert 'to("cpu", copy=True)' in code
    assert ".cpu()" not in code


def test_a_saving_under_a_hundredth_of_the_step_is_no_prescription(recording):
    r = launching(recording)
    r.frame("train.py(40): log", 975, 995)  # 20 of 1000 µs
    answer = analyze_rank(r.capture())
    assert [(p.id, max(p.saves_ns)) for p in answer.prescriptions if 0 < max(p.saves_ns) < 10_000] == []


@pytest.mark.parametrize(("saves_ns", "shown"), [((0.0, 9_000.0), False), ((0.0, 10_000.0), True)])
def test_what_is_worth_showing(saves_ns, shown):
    (p,) = advised("gc-pause", TRAINING)
    finding = Finding("gc-pause", "", 50_000.0)
    assert is_worth_showing(replace(p, saves_ns=saves_ns), finding, 1e6) is shown
    assert is_worth_showing(replace(p, saves_ns=(0.0, 0.0)), replace(finding, lost_ns=0.0), 1e6)  # a state


def test_the_first_advice_for_a_scanty_recording_is_another_recording(late):
    late.frame("train.py(40): augment", 210, 680)
    first, *others = late.diagnosis().prescriptions
    assert first.id == "capture-complete-records"
    assert "python-off-the-loop" in [p.id for p in others]


def test_amd_has_its_own_precision():
    p = advised("full-precision-matmul", Program(vendor="AMD"), facts={"has_tf32": True})[0]
    assert "HIPBLASLT_ALLOW_TF32" in p.needs


def test_a_recording_that_lacks_work_states_no_saving(recording):
    r = launching(recording)
    for i in range(12):
        r.runtime("cudaLaunchKernel", 80 * i + 45, 80 * i + 47)  # no task is in the file
    answer = r.diagnosis()
    assert answer.prescriptions[0].id == "capture-complete-records"
    assert [(p.saves_ns, p.predicted_step_ns) for p in answer.prescriptions] == [((0, 0), None)] * len(
        answer.prescriptions
    )
    assert answer.waterfall is None
