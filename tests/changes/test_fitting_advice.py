"""Advice fits whose code it is, what ran, and what the recording shows: a form for each."""

import os
from dataclasses import replace

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding, Where
from diagnose.tables.program import Program

INFERENCE, TRAINING = Program(trains=False), Program(trains=True)
ATTENTION = {"attention": True}


def advised(rule, program, **fields):
    return prescribe(Finding(rule, "", 1e6, **fields), 1e7, program)


def ids(rule, program, **fields):
    return [p.id for p in advised(rule, program, **fields)]


@pytest.mark.parametrize(("server", "option"), [("vllm", "enforce_eager"), ("sglang", "--cuda-graph-max-bs")])
def test_a_server_is_told_its_own_option(server, option):
    program = Program(trains=False, server=server)
    (p,) = [p for p in advised("launch-bound", program, facts={"has_device": True}) if p.id == "compile-graphs"]
    assert option in p.after
    assert "torch.compile" not in p.after
    assert "fuse-kernels" not in ids("kernel-latency", program)
    assert ids("unfused-elementwise", program) == []
    assert "autotune-kernels" not in ids("slow-kernel", program, facts={"attention": False})
    assert "larger-batch" not in ids("memory-headroom", program)  # its scheduler makes the batches


LOADING = {"single_process": True, "batch_ns": 1e6, "batches_per_step": 1.0, "has_device": True}


def test_a_loader_gets_the_batch_size_that_is_known_and_none_that_is_not():
    (p,) = advised("data-stall", Program(trains=True, batch_size=32), facts=LOADING)
    assert "batch_size=32, num_workers=2" in p.after
    (p,) = advised("data-stall", TRAINING, facts=LOADING)
    assert "batch_size" not in p.before + p.after
    assert p.after.startswith("DataLoader(dataset, num_workers=2, persistent_workers=True, pin_memory=True)   # and")


@pytest.mark.parametrize(("iterable", "workers"), [(False, 2), (True, 1)])
def test_a_pipeline_of_transformers_makes_its_loader_itself(iterable, workers):
    facts = {**LOADING, "library": "transformers", "iterable": iterable}
    (p,) = advised("data-stall", INFERENCE, facts=facts)
    assert p.after.startswith(f"outputs = pipe(inputs, num_workers={workers})")
    assert p.saves_ns[0] == 0


def test_frames_show_an_iterable_dataset():
    (p,) = advised("data-stall", TRAINING, facts={**LOADING, "iterable": True})
    assert "get_worker_info" in p.after
    assert p.saves_ns[0] == 0  # workers that all parse the whole stream save nothing
    assert "only the script's author" in p.arguments["by_hand"]


@pytest.mark.parametrize(("cores", "workers"), [(16, 10), (4, 3), (None, 10), (1, 0)])
def test_workers_share_the_cores_of_the_recorded_process(monkeypatch, cores, workers):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # of the machine that reads the capture
    facts = {**LOADING, "batch_ns": 9e6, "cores": cores}
    found = [p.arguments["workers"] for p in prescribe(Finding("data-stall", "", 9e6, facts=facts), 1e7, TRAINING)]
    assert found == [workers][: workers > 0]


@pytest.mark.parametrize(("cores", "least"), [(16, 0.85), (None, 0.0)])
def test_more_workers_hide_the_stall_where_the_recorded_process_had_the_cores(monkeypatch, cores, least):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)  # of the machine that reads the capture
    facts = {"single_process": False, "num_workers": 2, "workers_busy": 1.0, "cores": cores}
    (p,) = [p for p in advised("data-stall", TRAINING, facts=facts) if p.id == "more-workers"]
    assert p.saves_ns[0] == pytest.approx(least * 1e6)


@pytest.mark.parametrize(("ready", "waiting", "least"), [(0.02, None, 0.85), (0.4, None, 0.0), (0.4, 0.9, 0.85)])
def test_workers_that_compute_are_promised_nothing_where_no_core_was_free(ready, waiting, least):
    (p,) = advised("data-stall", TRAINING, facts={**LOADING, "ready_share": ready, "waiting_share": waiting})
    assert p.saves_ns == (pytest.approx(least * 1e6), 1e6)
    assert ("(none was free for 40 % of the recording), and memory" in p.needs) is (least == 0.0)
    assert ("little CPU, since loading mostly waits, and memory" in p.needs) is (waiting is not None)


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("warm-up", {}),
        ("lost-records", {}),
        ("allocator-stall", {}),
        ("recompilation", {}),
        ("device-contention", {}),
    ],
)
def test_an_example_of_inference_starts_no_training(rule, facts):
    for p in advised(rule, Program(trains=False, allocator="caching"), facts=facts):
        assert "train.py" not in p.before + p.after
    assert any("train.py" in p.after for p in advised(rule, Program(trains=True, allocator="caching"), facts=facts))


def test_an_operator_moves_to_the_device_only_from_the_host():
    assert ids("host-compute", TRAINING, facts={"operator": "", "on_host": 0.0}) == []
    (p,) = advised(
        "host-compute", TRAINING, where=(Where(op="step"),), facts={"operator": "aten::unique", "on_host": 0.5}
    )
    assert p.title == "Move aten::unique to the device or into the loader's workers"
    assert p.saves_ns == (250_000, 500_000)


def test_a_wait_for_a_copy_to_the_device_reads_nothing():
    waiting = {"where": (Where(op="aten::to"),), "facts": {"to_device": 0.9, "feeds_exchange": 0.0}}
    assert ids("host-sync", TRAINING, **waiting) == ["prefetch-to-device"]


def test_sizes_of_an_exchange_cannot_be_read_later():
    waiting = {"where": (Where(op="## dist ##"),), "facts": {"to_device": 0.0, "feeds_exchange": 0.9}}
    (p,) = advised("host-sync", TRAINING, **waiting)
    assert p.id == "stay-on-device"
    assert p.title == "Exchange a fixed number of rows, so that no rank reads sizes back"


def test_a_synchronize_that_reads_nothing_is_removed():
    waiting = {"where": (Where("train.py", 9, code="torch.cuda.synchronize()"),), "facts": {"waits_for": "synchronize"}}
    (p,) = advised("host-sync", TRAINING, **waiting)
    assert (p.id, p.title) == ("remove-synchronize", "Remove the synchronize from the loop (train.py:9)")


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("copy", "prefetch-to-device"),
        ("exchange", "stay-on-device"),
        ("shape", "stay-on-device"),
        ("branch", "stay-on-device"),
        ("value", "defer-sync"),
        ("synchronize", "remove-synchronize"),
    ],
)
def test_each_kind_of_wait_has_one_change(reason, change):
    assert ids("host-sync", TRAINING, where=(Where(op="aten::to"),), facts={"waits_for": reason}) == [change]


def test_of_python_that_was_not_recorded_there_is_nothing_to_change():
    assert ids("python-stall", TRAINING, where=(Where(op="## backward ##"),)) == []
    assert ids("python-stall", TRAINING, where=(Where("train.py", 12, "main"),)) == ["python-off-the-loop"]


def test_torchs_own_optimizer_is_not_to_be_moved():
    place = Where("train.py", 49, "main", "Optimizer.zero_grad#SGD.zero_grad")
    assert ids("python-stall", TRAINING, where=(place,)) == []


def test_a_library_that_runs_inside_a_line_is_called_ahead():
    place = Where("serve.py", 3, "main", library="transformers/image_transforms.py:390 in normalize")
    (p,) = advised("python-stall", INFERENCE, where=(place,))
    assert p.title == "Call the library at serve.py:3 one step ahead, in a background thread"


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        ({"attention_backends": frozenset({"math"}), "vendor": "AMD"}, "FLASH_ATTENTION, SDPBackend.EFFICIENT"),
        ({"attention_backends": frozenset({"flash"}), "vendor": "NVIDIA"}, "CUDNN_ATTENTION, SDPBackend.EFFICIENT"),
        ({"dtypes": frozenset({"float"}), "attention_backends": frozenset({"math"})}, "EFFICIENT_ATTENTION"),
    ],
)
def test_another_backend_is_one_that_did_not_run_and_takes_the_types(fields, others):
    (p,) = advised("slow-kernel", Program(**fields), facts={"attention": True})
    assert f"sdpa_kernel([SDPBackend.{others}" in p.after


def test_float32_attention_has_one_backend():
    program = Program(dtypes=frozenset({"float"}), attention_backends=frozenset({"efficient"}))
    assert ids("slow-kernel", program, facts={"attention": True}) == []


def test_a_larger_batch_without_a_loader_is_a_larger_call():
    (p,) = advised("memory-headroom", Program(trains=False, has_loader=False, batch_size=4))
    assert (p.before, p.after.startswith("y = model(x)   # twice as many")) == ("y = model(x)", True)


def test_an_optimizer_that_is_not_torchs_has_no_such_argument():
    assert ids("unfused-optimizer", TRAINING, facts={"name": "CombinedOptimizer", "has_device": False}) == []
    for has_device, known in ((True, ["foreach-optimizer"]), (False, [])):  # on a CPU it is slower
        assert ids("unfused-optimizer", TRAINING, facts={"name": "RMSprop", "has_device": has_device}) == known


def test_a_copy_in_a_library_cannot_be_left_out():
    facts = {"is_conversion": False}
    assert ids("layout-copy", TRAINING, where=(Where("model.py", 3, "forward"),), facts=facts) == ["no-contiguous"]
    inside = Where("model.py", 3, "forward", library="transformers/integrations/sdpa_attention.py:18 in forward")
    assert ids("layout-copy", TRAINING, where=(inside,), facts=facts) == []


def test_a_library_is_told_which_attention_to_use():
    inside = Where("model.py", 3, "main", library="transformers/models/vit/modeling_vit.py:18 in forward")
    assert "attn_implementation" in advised("unfused-attention", INFERENCE, where=(inside,))[0].after
    assert "F.scaled" in advised("unfused-attention", INFERENCE, where=(Where("model.py", 3, "f"),))[0].after


def test_where_training_is_not_known_the_example_has_no_loss():
    p = next(p for p in advised("full-precision-matmul", Program(), facts={"has_tf32": True}) if p.id == "autocast")
    assert "loss" not in p.before + p.after + p.safety


def test_collectives_in_a_graph_are_named():
    facts = {"has_device": True}
    (p,) = [p for p in advised("launch-bound", Program(has_collectives=True), facts=facts) if p.id == "compile-graphs"]
    assert "collectives of NCCL" in p.needs


def test_what_fused_adagrad_needs_is_stated():
    (p,) = advised("unfused-optimizer", TRAINING, facts={"name": "Adagrad", "has_device": True})
    assert "dense gradients" in p.needs
    (p,) = advised("unfused-optimizer", TRAINING, facts={"name": "AdamW", "has_device": True})
    assert "dense gradients" not in p.needs


@pytest.mark.parametrize("op", ["aten::to", "aten::is_nonzero"])
def test_a_wait_in_a_library_is_not_the_scripts(op):
    inside = Where("serve.py", 3, "main", op, library="transformers/pipelines/base.py:1173 in _ensure_tensor_on_device")
    assert ids("host-sync", INFERENCE, where=(inside,)) == []
    assert len(ids("host-sync", INFERENCE, where=(replace(inside, library=None),))) == 1


def test_flash_attention_of_amd_has_another_library_and_the_efficient_one_the_same():
    (p,) = advised("slow-kernel", Program(attention_backends=frozenset({"flash"}), vendor="AMD"), facts=ATTENTION)
    assert p.after.startswith('torch.backends.cuda.preferred_rocm_fa_library("ck")')
    assert "sdpa_kernel" not in p.after
    program = Program(attention_backends=frozenset({"efficient"}), vendor="AMD")
    assert "other-attention" not in ids("slow-kernel", program, facts=ATTENTION)


OWN = Where("train.py", 12, "main", "aten::max")


@pytest.mark.parametrize(
    ("operator", "where", "is_advised"),
    [
        ("aten::max", OWN, True),
        ("aten::max", replace(OWN, library="transformers/pipelines/base.py:90 in postprocess"), False),
        ("aten::unflatten_dense_tensors", OWN, False),
    ],
)
def test_a_host_operator_of_a_library_or_of_ddp_is_not_the_scripts_to_move(operator, where, is_advised):
    facts = {"operator": operator, "on_host": 1.0}
    assert ids("host-compute", TRAINING, facts=facts, where=(where,)) == ["compute-on-device"] * is_advised


def test_what_no_loader_made_may_be_prepared_by_other_means_too():
    copied = {"where": (Where("train.py", 46, code="mask.to(device)"),), "facts": {"num": 3, "to_host": 0}}
    (p,) = advised("exposed-copy", Program(trains=True, has_loader=False), **copied)
    assert p.id == "prefetch-to-device"


def test_of_a_recurrence_little_is_certain():
    issuer = {"file": "a.py", "line": 3, "num": 400.0, "share": 1.0, "reads": 0}
    (p,) = advised("recurrence", TRAINING, facts={"issuer": issuer, "kind": "recurrent", "form": "GRU"})
    assert (p.title[:10], p.saves_ns[0] / p.saves_ns[1]) == ("Use nn.GRU", pytest.approx(0.1 / 0.95))


@pytest.mark.parametrize(("in_model", "share", "fits"), [(True, 0.9, True), (False, 0.9, False), (False, 0.4, True)])
def test_no_graph_for_a_loop_outside_the_model(in_model, share, fits):
    loop = {"issuer": {"file": "a.py", "line": 3, "num": 400.0, "reads": 0.0, "share": share, "in_model": in_model}}
    assert ("compile-graphs" in ids("launch-bound", TRAINING, facts={"has_device": True, **loop})) is fits


@pytest.mark.parametrize(
    ("names", "reads", "words"),
    [
        (("aten::sum", "aten::item"), 200.0, "read 200 numbers at once"),
        (("aten::index", "aten::sub"), 0.0, "let few operators work on all rows"),
    ],
)
def test_the_words_for_a_loop_follow_from_what_it_does(names, reads, words):
    loop = {"file": "a.py", "line": 3, "num": 400.0, "reads": reads, "share": 0.9, "in_model": False, "names": names}
    (p,) = advised("launch-bound", TRAINING, facts={"has_device": True, "issuer": loop})
    assert p.title.endswith(words)


def test_no_compiled_model_has_gradients_of_gradients():
    twice = Program(trains=True, second_derivatives=True)
    (p,) = [p for p in advised("launch-bound", twice, facts={"has_device": True}) if p.id == "compile-graphs"]
    assert p.title.startswith("Capture the whole step as one CUDA graph")
    assert "StepGraph(whole_step" in p.after
    assert "torch.compile(" not in p.after
    assert ids("launch-bound", twice, facts={"has_device": False}) == []
