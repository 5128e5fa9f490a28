"""Every line that a report prints before and after a change runs as pasted, and keeps what the change promises."""

from __future__ import annotations

import concurrent.futures
import gc
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from tests.changes.advice_cases import distinct
from tests.changes.pasted import assert_same, is_python, plain, run, stored, trained
from tests.changes.user_script import script

PRINTED = distinct()
CASES = [p for p in PRINTED if is_python(p.prescription.before) or is_python(p.prescription.after)]
ON_CPU = (  # what a GPU does, and four ranks share out, is done by the CPU of one
    ('"cuda"', '"cpu"'), (".cuda()", ".cpu()"), ('{"tensor": 4}', '{"tensor": 1}'), ('"nccl"', '"gloo"'),
    ("torch.cuda.synchronize", "torch.cpu.synchronize"), ("torch.cuda.current_stream", "torch.cpu.current_stream"),
    ("torch.cuda.graph(graph)", "nullcontext()"), (", capturable=True", ""),
)  # fmt: skip
# What differs by design, however the rest is compared.
DIFFERS = {
    "accumulate-gradients": {"trained"},  # it is a loop of training
    "compute-first": {"scale"},  # which is broadcast afterwards
    "keep-diagonal": {"posterior"},  # another class of the same distribution
    "detach-inputs": {"trained"},  # layers that no optimizer has are frozen
    "no-fills": {"out"},  # the script writes all of it afterwards
}
NEEDS_TORCH = {"fewer-guards": (2, 8)}
NEEDS_ONE_OF = {"eight-bit-optimizer": ("torchao", "bitsandbytes"), "pack-samples": ("webdataset",)}
COMPILE = torch.compile


def are_close(one, other):
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-5)


SAME = {"identical": torch.equal, "rounding": are_close}


def compiled(model=None, *, backend="inductor", mode=None, options=None, **arguments):
    """Return the model compiled without kernels of its own; torch checks all that it is given."""
    if model is None:
        return lambda given: compiled(given, backend=backend, mode=mode, options=options, **arguments)
    COMPILE(model, backend=backend, mode=mode, options=options, **arguments)
    return COMPILE(model, backend="eager", **arguments)


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """Keep what a text sets for the whole process from the other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", concurrent.futures.ThreadPoolExecutor)
    for name in ("dropout", "scaled_dot_product_attention"):  # which fast-dropout replaces
        monkeypatch.setattr(functional, name, getattr(functional, name))
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    gc.enable()
    gc.unfreeze()


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning", "ignore:`broadcast_buffers` is deprecated")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("printed", [pytest.param(p, id=p.name) for p in CASES])
def test_what_is_printed_runs(printed, tmp_path):
    p, outcomes = printed.prescription, []
    if torch.torch_version.TorchVersion(torch.__version__) < NEEDS_TORCH.get(p.id, (0,)):
        pytest.skip(f"needs torch {NEEDS_TORCH[p.id]}")
    packages = NEEDS_ONE_OF.get(p.id, ("torch",))
    if not any(map(find_spec, packages)):
        pytest.skip(f"needs {' or '.join(packages)}")
    for side in ("before", "after"):
        text = getattr(p, side)
        if not is_python(text):
            continue  # commands: test_printed_commands.py
        for on_gpu, on_cpu in ON_CPU:
            text = text.replace(on_gpu, on_cpu)
        names = script(printed, side, tmp_path)
        left = run(text, names, f"{p.id}, {side}")
        assert not left, f"{side}: {left} did not run"
        outcomes.append((names | {"trained": trained(names)}, stored(text)))
    if len(outcomes) < 2 or printed.promise not in SAME:
        return
    (before, of_before), (after, of_after) = outcomes
    compared = of_before & of_after & before.keys() & after.keys()
    if ("optimizer.step(" in p.before) == ("optimizer.step(" in p.after):  # or one of the two trains for a step more
        compared.add("trained")
    for name in sorted(compared - DIFFERS.get(p.id, set())):
        assert_same(plain(before[name]), plain(after[name]), SAME[printed.promise], name)


@pytest.mark.parametrize("printed", [pytest.param(p, id=p.name) for p in PRINTED])
def test_what_is_printed_can_be_shown(printed, presentable):
    presentable(printed.prescription)
