"""evaluation/gpu_day without a GPU: captures are cut whole, pieces are run once, results become tables."""

import gzip
import importlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from diagnose import analyze_trace

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "evaluation" / "gpu"


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script of evaluation/gpu as its siblings do."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.syspath_prepend(str(ROOT / "fixtures"))
    names = ("cut", "report", "day", "catalogue")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def kineto(num_steps=9, *, ops=20):
    """Return steps of 100 µs, each with operators that launch one kernel, which runs 150 µs later."""
    events = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}]
    for step in range(num_steps):
        begin = step * 100.0
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 100.0})
        for i in range(ops):
            at, number = begin + i * 5, step * ops + i
            events.append({**common, "cat": "python_function", "name": f"f{number}" * 30, "ts": at, "dur": 4})
            events.append(
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1,
                 "args": {"correlation": number}}
            )  # fmt: skip
            events.append(
                {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": at + 150, "dur": 3,
                 "args": {"correlation": number, "device": 0, "stream": 7}}
            )  # fmt: skip
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def names(data, category):
    return [e["name"] for e in json.loads(gzip.decompress(data))["traceEvents"] if e.get("cat") == category]


def test_a_cut_trace_holds_whole_steps_and_what_they_launched(load):
    data = load("cut").cut_trace(kineto(), 10**9)
    assert names(data, "user_annotation") == [f"ProfilerStep#{n}" for n in range(1, 7)]
    events = json.loads(gzip.decompress(data))["traceEvents"]
    kernels = sorted(e["args"]["correlation"] for e in events if e.get("cat") == "kernel")
    assert kernels == list(range(20, 140))  # also those that run after the last step
    assert events[0]["ph"] == "M"


def test_what_is_too_large_loses_steps_first_and_python_frames_then(load):
    cut, whole = load("cut").cut_trace, kineto()
    one_step = len(cut(kineto(1), 10**9))
    data = cut(whole, one_step + 50)
    assert len(names(data, "user_annotation")) == 1
    assert names(data, "python_function")
    bare = cut(whole, one_step - 100)
    assert len(bare) <= one_step - 100
    assert not names(bare, "python_function")
    assert names(bare, "kernel")


@pytest.mark.parametrize(("data", "said"), [(kineto(0), "no ProfilerStep"), (kineto(1), "one step alone takes")])
def test_what_cannot_be_cut_is_told(load, data, said):
    with pytest.raises(ValueError, match=said):
        load("cut").cut_trace(data, 100)


def test_a_cut_trace_is_diagnosed_like_the_whole(load, tmp_path):
    for name, data in (("whole", kineto()), ("cut", load("cut").cut_trace(kineto(), 10**9))):
        (tmp_path / f"{name}.json.gz").write_bytes(data)
    whole, cut = (analyze_trace(tmp_path / f"{name}.json.gz") for name in ("whole", "cut"))
    assert cut.verdict == whole.verdict
    assert cut.step_ns == pytest.approx(whole.step_ns, rel=0.2)


def gpu_day(*arguments):
    command = (sys.executable, SCRIPTS / "day.py", "--device", "cpu", *arguments)
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.full
def test_pieces_are_run_once_and_packed_small(tmp_path):
    work = tmp_path / "work"
    first = gpu_day("captures", "--only", "healthy-fixed", "--work", work, "--pack", tmp_path, "--minutes", "5")
    assert first.returncode == 0, first.stderr
    assert "1 of 1 pieces done" in first.stdout
    outcome = work / "captures" / "healthy-fixed.outcome.json"
    before = outcome.read_bytes()
    assert json.loads(json.loads(before)["out"])["verdict"] == "no-gpu"
    again = gpu_day("captures", "--only", "healthy-fixed", "--work", work)
    assert again.returncode == 0
    assert outcome.read_bytes() == before
    with tarfile.open(tmp_path / "gpu_day.tar.gz") as archive:
        packed = {member.name: member.size for member in archive}
        archive.extractall(tmp_path / "unpacked", filter="data")
    traces = {name: size for name, size in packed.items() if name.endswith("trace.json.gz")}
    assert len(traces) == 2
    assert all(size <= 400_000 and "-small/" in name for name, size in traces.items())
    found = analyze_trace(tmp_path / "unpacked" / "captures" / "healthy-fixed-small")
    assert found.verdict == "no-gpu"


def test_a_call_ends_in_time_and_says_what_is_left(tmp_path):
    late = gpu_day("captures", "--work", tmp_path / "work", "--minutes", "0")
    assert late.returncode == 3
    assert "0 of" in late.stdout
    assert not (tmp_path / "work").exists()


def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, str(SCRIPTS / "day.py"), "--work", str(tmp_path)]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr


def test_results_become_tables(load, tmp_path):
    work = tmp_path / "work"
    told = {
        "overhead/5ms": {
            "asked_ms": 5.0, "unprofiled": 5.0, "light": 5.1, "attribution": 7.5, "launches": 120.0,
            "longer": {"light": 0.02, "attribution": 0.5}, "sampler": {"cost_share": 0.004},
        },
        "agreement/all": {
            "step_ms": {"events": 10.0, "capture": 10.1}, "product_ms": {"events": 2.0, "capture": 1.9},
            "peak_bytes": {"allocator": 1000, "capture": None}, "busy": {"nvml_percent": 99, "capture_percent": 97.5},
            "device": "H200", "torch": "2.11",
        },
    }  # fmt: skip
    for name, value in told.items():
        path = work / f"{name}.outcome.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"name": name, "code": 0, "seconds": 1, "out": json.dumps(value), "err": ""}))
    written = load("report").write_reports(work, tmp_path / "docs")
    assert [path.name for path in written] == ["overhead.md", "agreement.md"]
    assert "| 5 | 120 | 5.000 | 5.100 | 7.500 | +2.0% | +50.0% | 0.4% of a core |" in written[0].read_text()
    assert "| step, ms: CUDA events | 10 | 10.1 | +1.0% |" in written[1].read_text()
    assert "| peak memory, bytes: allocator | 1000 | – | – |" in written[1].read_text()
