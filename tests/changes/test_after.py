"""What prescriptions tell users to paste runs as pasted, on tiny stand-ins for what their script has."""

import ast
import concurrent.futures
import gc
import inspect
import itertools
import subprocess
import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from diagnose import analyzers
from diagnose.changes.common.prescribe import also_possible, prescribe
from diagnose.kernels import dropout
from diagnose.model.diagnosis import Finding, Where
from diagnose.tables.program import Program
from tests.changes.test_load_once import LOADS_ONCE

RULES = {rule.META.id: rule for rule in analyzers.RULES}
# What a finding says of the trace; every form that a prescription takes must be among these.
FACTS = {
    "data-stall": (
        {"single_process": True, "num_workers": 0, "batch_size": 2, "has_device": False},
        {"single_process": True, "num_workers": 0, "has_device": True},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "sampler": "_InfiniteConstantSampler"},
        {"single_process": False, "num_workers": 1, "batch_size": 2},
        {"single_process": False}, {"single_process": True, "num_workers": 0, "restart_share": 0.8},
        {"num_workers": 2, "batch_size": 2, "keeps_up": True, "workers_busy": 1e-9, "counters": {}},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "waits": True, "waiting_share": 0.9},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "library": "transformers"},
        *(
            {"single_process": True, "slow_line": {"file": "data.py", "line": 31, "share": 0.8}, "sample_work": work}
            for work in ("", "image", "loop", "parsing", "table", "text")
        ),
        LOADS_ONCE,
    ),
    "host-collective": ({}, {"of_host_backend": True}),
    "host-compute": ({"operator": "aten::unique", "on_host": 1.0},),
    "host-sync": ({}, {"to_device": 1.0}, {"waits_for": "synchronize"}),
    "full-precision-matmul": ({"has_tf32": False}, {"has_tf32": True}),
    "exposed-copy": ({"to_host": 1, "num": 1, "pageable": 1}, {"to_host": 0, "num": 1, "pageable": 1}),
    "exposed-communication": (
        {"is_exchange": True}, {"has_device": True}, {"ddp": {"bucket_cap_mb": 500.0, "gradient_as_bucket_view": True}},
        {"reductions_by_hand": 10.0},
    ),
    "small-collectives": ({"one_by_one": True},),
    "launch-bound": ({"has_device": True}, {"has_device": False}),
    "layout-copy": (
        {"is_conversion": True}, {"is_conversion": False}, {"is_conversion": False, "cast_to": "half"},
        {"is_conversion": False, "around_graphs": True},
    ),
    "slow-kernel": ({"attention": True}, {"attention": False}),
    "misaligned-matmul": ({"size": 50257},),
    "unfused-optimizer": (
        {"name": "AdamW"}, {"name": "RMSprop"}, {"name": "MyAdam", "class": "MyAdam", "module": "__main__"},
    ),
    "python-stall": ({}, {"waiting_share": 0.1}, {"in_pass": 1.0}),
    "periodic-stall": (
        {"phase": "checkpoint"}, {"phase": "evaluation", "period": 16}, {"phase": "loading", "num_workers": 1},
    ),
    "straggler": (
        {}, {"kind": "slow-group"}, {"kind": "slow-group", "hosts": ("one",)}, {"begins_late_rank": 1},
        *({"kind": "turns", "cause": cause} for cause in ("gc-pause", "python-stall", "off-cpu", "data-stall", "")),
        *({"kind": "late", "late_rank": 1, "cause": f"slower-{what}"} for what in ("device", "host", "rank")),
    ),
    "ignored-targets": ({}, {"ignored": 0.85}),
    "discarded-gradients": ({}, {"is_frozen": True}),
    "repeated-call": ({}, {"with_gradients": True}),
    "rollout-bound": ({"phase": "rollout"}, {"phase": "inference"}),
}  # fmt: skip
ISSUER = {"file": "train.py", "line": 3, "num": 640.0, "share": 0.9, "in_model": False}
FACTS["launch-bound"] = (
    *FACTS.get("launch-bound", ({"has_device": True}, {"has_device": False})),
    {"has_device": True, "before_graphs": 0.5},
    {"has_device": False, "issuer": ISSUER | {"reads": 160.0}},
    {"has_device": False, "issuer": ISSUER | {"reads": 0.0}},
    {"has_device": False, "issuer": ISSUER | {"reads": 0.0, "module": "Cell", "calls": 60.0}},
    {"has_device": True, "issuer": ISSUER | {"reads": 160.0, "names": ("aten::linalg_vector_norm",)}},
    {"has_device": True, "issuer": ISSUER | {"reads": 0.0, "names": ("aten::mul", "aten::copy_")}},
)
SHELL = (
    "diagnose ", "python -m sglang", "nvidia-smi", "sudo ", "env ", "rocm-smi",
    "mpirun ", "all_reduce_perf ", "unset ", "top ", "PYTORCH_", "CUDA_", "MALLOC_",
)  # fmt: skip


LIBRARY = "transformers/models/vit/modeling_vit.py:252 in forward"
PLACED = {
    "host-sync": (
        Finding("host-sync", "", 1e6, where=(Where(op="aten::nonzero"),)),
        Finding("host-sync", "", 1e6, where=(Where(op="aten::is_nonzero"),)),
    ),
    "python-stall": (
        Finding("python-stall", "", 1e6, where=(Where("train.py", 3),)),
        Finding("python-stall", "", 1e6, where=(Where("train.py", 3, caller="hook"),)),
        Finding("python-stall", "", 1e6, where=(Where("transformers/image.py", 3),)),
    ),
    "periodic-stall": (
        Finding("periodic-stall", "", 1e6, share=0.1, where=(Where("train.py", 3, code="torch.load(path)"),)),
    ),
    "allocator-stall": (
        Finding("allocator-stall", "", 1e6, where=(Where("train.py", 3, code="torch.cuda.empty_cache()"),)),
    ),
    "small-grid": (Finding("small-grid", "", 1e6, where=(Where(op="aten::mm"),)),),
    "unfused-attention": (Finding("unfused-attention", "", 1e6, where=(Where("serve.py", 3, library=LIBRARY),)),),
}


PROGRAMS = (Program(trains=True, allocator="caching"), Program(trains=False, allocator="uncached"))
OTHER_PROGRAMS = {
    "allocator-stall": (Program(trains=True, vendor="AMD"),),
    "launch-bound": (
        Program(server="vllm"),
        Program(server="sglang"),
        Program(trains=True, second_derivatives=True),
    ),
    "memory-headroom": (Program(has_loader=False, batch_size=4),),
    "recompute": (Program(trains=True, heavy=frozenset({"convolution", "product"})),),
    "full-precision-matmul": (Program(),),
    "layout-copy": (Program(is_compiled=True, has_graphs=True),),
}


def prescriptions():
    for name in RULES:
        for facts in FACTS.get(name, ({},)):
            for finding in (replace(f, facts=facts) for f in (Finding(name, "", 1e6), *PLACED.get(name, ()))):
                for program in (*PROGRAMS, *OTHER_PROGRAMS.get(name, ())):
                    for p in prescribe(finding, 1e7, program):
                        yield pytest.param(p, id=f"{p.id}-{sorted(map(str, facts.values()))}-{program.trains}")


PRESCRIPTIONS = list(prescriptions())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def script(monkeypatch):
    """Return the names that a training script has; what needs a GPU is replaced by its like."""
    monkeypatch.setattr(nn.Module, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=lambda _side: None))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: SimpleNamespace(record=int, elapsed_time=len, query=int))
    monkeypatch.setattr(functional, "dropout", dropout._torch_dropout)  # which fast-dropout replaces
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, _k, v, **_options: q @ q.mT @ v)
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", concurrent.futures.ThreadPoolExecutor)
    precision = torch.get_float32_matmul_precision()
    dataset = TensorDataset(torch.randn(4, 4), torch.randn(4, 4))
    model, optimizer_of = Model(), lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    x, weight = torch.randn(2, 4), torch.ones(1)
    weight.grad = torch.ones(1)
    names = {
        "torch": torch, "nn": nn, "F": functional, "dist": dist, "gc": SimpleNamespace(disable=int, collect=int),
        "DataLoader": loader, "Dataset": Dataset, "DistributedSampler": DistributedSampler,
        "DistributedDataParallel": without_devices, "Model": Model, "model": model, "optimizer": optimizer_of(model),
        "criterion": nn.MSELoss(), "dataset": dataset, "loader": DataLoader(dataset, 2, num_workers=1), "x": x,
        "y": torch.randn(2, 4), "loss": model(x).square().mean(), "batch": torch.randn(3, 4), "device": "cpu",
        "batch_size": 2, "lr": 0.1, "step": 100, "local_rank": "cpu", "scale": 0.5, "shape": (2, 2), "width": 4,
        "make": lambda _packed, dtype: dtype, "train_step": len, "use": lambda *_: 0,
        "result": "made", "side": None, "other_work": int, "wait_for_it": int,
        "save": len, "block": model.layer,
        "q": torch.randn(1, 1, 4, 4), "k": torch.randn(1, 1, 4, 4), "v": torch.randn(1, 1, 4, 4),
        "images": torch.randint(0, 255, (1, 3, 4, 4), dtype=torch.uint8), "ids": torch.tensor([1, 0]),
        "table": torch.randn(3, 2), "inputs": [torch.randn(2, 3)] * 2, "weights": [torch.randn(3, 2)] * 2,
        "score": torch.ones(()), "output": torch.ones(2), "value": torch.ones(()), "hook": lambda *_: None,
        "run_step": len, "preprocess": len, "next_inputs": [], "mask": torch.tensor([[True] * 4, [False] * 4]),
        "itertools": itertools, "values": [torch.ones(())], "target": torch.tensor([1, 0]), "num_classes": 2,
        "pred": torch.tensor([1, 1]), "labels": torch.tensor([0, 1]), "beta1": 0.9,
        "group": {"params": [weight], "lr": 0.1}, "beta2": 0.999, "eps": 1e-8,
        "self": SimpleNamespace(state={weight: dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.ones(1))}),
        "pipe": lambda inputs, num_workers: (inputs, num_workers), "LLM": dict, "name": "some/model",
        "AutoModel": SimpleNamespace(from_pretrained=lambda _name, **_options: model),
        "out": torch.empty(2), "mine": torch.ones(2), "bottom": len, "keep": torch.tensor([True, False]),
        "evaluate": lambda _model, _loader: None, "validation_loader": (), "policy": model, "teacher": model,
        "array": torch.randn(2, 4).double().numpy(), "observations": x,
        "head": nn.Linear(4, 2), "hidden": torch.randn(2, 4),
        "num_rows": 5, "heads": 1, "max_length": 4, "length": 1, "dtype": torch.float32,
        "new_keys": torch.ones(2, 1, 1, 4), "distance": torch.rand(4, 4), "num_neighbours": 2,
        "os": SimpleNamespace(
            sched_getaffinity=lambda _pid: {0, 1}, sched_setaffinity=lambda *_: None, cpu_count=lambda: 2
        ),
        "local_world_size": 1, "num_workers": 1, "time": time, "rank": 0, "executor": SimpleNamespace(submit=len_of),
        "generator": model, "discriminator": model, "noise": x, "zeros": torch.zeros(2, 4), "average": Model(),
        "decay": 0.9, "max_norm": 1.0, "n": 2, "tensor": SimpleNamespace(pin_memory=lambda: x),
        "gymnasium": SimpleNamespace(make_vec=environments), "texts": ["a b", "a"],
        "captured_batch": torch.zeros(3, 4), "graph": SimpleNamespace(replay=int),
        "tokenizer": lambda _texts, **_: {"attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]), "labels": x[0]},
    }  # fmt: skip
    yield names
    torch.set_float32_matmul_precision(precision)


def loader(dataset, **options):
    assert not isinstance(options.get("num_workers"), str)
    return DataLoader(dataset, **options | {"pin_memory": False})


def len_of(*arguments):
    return len(arguments)


def environments(_name, **_options):
    return SimpleNamespace(step=lambda _actions: (torch.ones(2, 4), torch.ones(2), {}))


def without_devices(model, *, device_ids=None, **options):
    return DistributedDataParallel(model, **options)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available", "ignore:User provided device_type of 'cuda'")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning", "ignore:`broadcast_buffers` is deprecated")
@pytest.mark.parametrize("prescription", PRESCRIPTIONS)
def test_what_is_pasted_runs(prescription, script, tmp_path):
    if prescription.after.startswith(SHELL):
        done = subprocess.run(["sh", "-n"], input=prescription.after, text=True, capture_output=True, check=False)
        assert done.stderr == ""
        return
    if prescription.id == "device-backend":  # needs a device for each rank
        compile(prescription.after, prescription.id, "exec")
        return
    if prescription.id in ("no-contiguous", "overlap-exchange"):
        script |= {"x": torch.randn(1, 4, 2), "w": torch.randn(4, 3)}
    if prescription.id == "checkpoint-blocks":
        script |= {"model": nn.Sequential(Model(), Model())}
    if prescription.id == "vectorise-loop":
        script["loss"].backward()
    if prescription.id == "channels-last":
        script |= {"Model": lambda: nn.Conv2d(3, 4, 1)}
    if prescription.id == "sparse-embeddings":
        script |= {"model": nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 1))}
    if prescription.id == "align-pauses":
        script |= {"local_rank": 0, "path": tmp_path / "model.pt"}
    if prescription.id in ("save-in-background", "load-mapped"):
        torch.save(script["model"].state_dict(), tmp_path / "model.pt")
        script |= {"path": tmp_path / "model.pt", "state": script["model"].state_dict(), "build_model": Model}
        script |= {"folder": tmp_path / "weights"}
    try:
        code = prescription.after.replace("(..., ", "(model.parameters(), ")  # the other arguments, which stay
        exec(compile(code, prescription.id, "exec"), script)  # that is what users do with it
    finally:
        gc.enable()
        gc.unfreeze()


def test_every_change_that_a_rule_names_was_asked_for():
    named = {name for rule in analyzers.RULES for name in rule.META.changes}
    assert {param.values[0].id for param in PRESCRIPTIONS} == named


def test_every_rule_was_asked():
    asked = {param.values[0].rule for param in PRESCRIPTIONS}
    assert asked == {rule.META.id for rule in analyzers.RULES if rule.META.changes}


ALSO = [
    pytest.param(p, id=f"{p.id}-{p.rule}")
    for name, facts, program in (
        ("data-stall", {"single_process": True, "waits": True, "has_device": True}, Program(trains=True)),
        ("data-stall", {"single_process": True, "iterable": True}, Program(trains=True)),
        ("exposed-copy", {"to_host": 0, "num": 1}, Program(trains=True, has_loader=False)),
        ("exposed-communication", {"is_exchange": False, "world_size": 4, "num_devices": 2}, Program(is_ddp=True)),
        ("exposed-communication", {"ddp": {"find_unused_parameters": True}}, Program(is_ddp=True)),
        ("kernel-latency", {}, Program(trains=False)),
        ("launch-bound", {"has_device": True}, Program(trains=True)),
        ("memory-fragmentation", {}, Program()),
        ("memory-headroom", {}, Program(trains=True)),
        (
            "memory-pressure",
            {"world_size": 4, "optimizer": "AdamW", "by_category": {"activations": 8 << 30}},
            Program(trains=True, is_ddp=True, has_cross_entropy=True, heavy=frozenset({"product"})),
        ),
        ("recompilation", {}, Program(trains=True, varying_sizes=frozenset({197, 211}))),
        ("slow-kernel", {"attention": False, "kernel": "void at::native::reduce_kernel<512, 1>(int)"}, Program()),
        ("small-collectives", {}, Program(is_ddp=True)),
        ("straggler", {"late_rank": 1, "is_exchange": False}, Program(is_ddp=True)),
        ("unfused-elementwise", {"chains": [["aten::silu", "aten::mul"]]}, Program()),
        ("unfused-optimizer", {"name": "AdamW", "has_device": True}, Program(trains=True, clips=True)),
    )
    for p in also_possible(Finding(name, "", 1e6, facts=facts), 3e6, program)  # much of the step: all are offered
]


@pytest.mark.parametrize("prescription", ALSO)
def test_what_is_also_possible_calls_modules_as_they_are(prescription, presentable):
    presentable(prescription)
    if prescription.after.startswith(("ncu ", "rsync ")):
        subprocess.run(["sh", "-n"], input=prescription.after, text=True, check=True)
        return
    tree = ast.parse(prescription.after)
    taken = {
        alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in taken:
            given = {keyword.arg: None for keyword in call.keywords}
            inspect.signature(taken[call.func.id]).bind(*call.args, **given)


def test_every_further_change_was_asked_for():
    named = {name for rule in analyzers.RULES for name in rule.META.also}
    assert {param.values[0].id for param in ALSO} == named
