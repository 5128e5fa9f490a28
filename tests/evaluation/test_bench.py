"""The benchmark against Holistic Trace Analysis: each trace has a row, and is held to its own bar."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "evaluation" / "benchmarks"))
    yield importlib.import_module("bench")
    for name in ("bench", "measure"):
        sys.modules.pop(name, None)


def result(bench, trace, size_mb, processes, faster, memory_share):
    cost = bench.Cost(1.0, 1.0, 100.0)
    return bench.Result(trace, size_mb, processes, size_mb, cost, bench.Cost(faster, faster, 100.0 / memory_share), 5)


def test_a_trace_is_held_to_the_bar_of_its_size_and_processes(bench):
    further = bench.FURTHER_TRACES[0]
    assert not result(bench, bench.DEFAULT_TRACE, 60, 2, 7.0, 0.2).holds
    assert result(bench, bench.DEFAULT_TRACE, 60, 2, 8.0, 0.2).holds
    assert result(bench, bench.DEFAULT_TRACE, 60, 1, 7.0, 0.2).holds
    assert not result(bench, bench.DEFAULT_TRACE, 1000, 2, 27.0, 0.2).holds
    assert result(bench, further, 60, 1, 7.0, 0.2).holds
    assert not result(bench, further, 60, 1, 7.0, 0.21).holds
    assert result(bench, further, 60, 2, 1.0, 1.0).holds  # by two of that size nothing is promised
    assert not result(bench, further, 290, 2, 12.9, 0.1).holds
    assert not result(bench, further, 1000, 1, 19.0, 0.05).holds
    assert result(bench, further, 10, 1, 1.0, 1.0).holds  # a size without a bar


def test_the_page_has_a_row_for_each_trace_and_size(bench):
    traces = (bench.DEFAULT_TRACE, *bench.FURTHER_TRACES)
    results = [result(bench, trace, 60, processes, 7.0, 0.125) for trace in traces for processes in (1, 2)]
    page = bench.report(results, bench.OwnCosts(0.1, 0.19, 100, 0.1, 0.01, 0.01))
    rows = [line for line in page.splitlines() if line.startswith("| ") and "MB |" in line]
    assert [row.split(" | ")[0] for row in rows] == [
        "| hta_dlrm_v100_test",
        "| hta_dlrm_v100_test",
        "| hta_rn_ddp_v100_ns",
        "| hta_rn_ddp_v100_ns",
        "| tl_xdit_sd35_mi300",
        "| tl_xdit_sd35_mi300",
    ]
    assert [row.split(" | ")[-1] for row in rows] == ["met |", "missed |", "met |", "none |", "met |", "none |"]
    assert "1/8.0" in rows[0]


def test_a_tiny_trace_has_a_bar(bench):
    costs = {"help_s": 0.1, "nodes": 100, "what_if_s": 1e-6, "sampler_slowdown": 0.01, "sampler_share": 0.01}
    assert bench.OwnCosts(tiny_s=0.19, **costs).missed == []
    assert bench.OwnCosts(tiny_s=0.21, **costs).missed == ["a tiny trace"]


def test_what_is_measured_is_a_copy_that_is_installed(bench, monkeypatch, tmp_path):
    other = tmp_path / "other"
    (other / "diagnose" / "analyzers").mkdir(parents=True)
    for package in ("diagnose", "diagnose/analyzers"):
        (other / package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(other))
    python = importlib.import_module("measure").installed_copy(tmp_path / "installed")
    place = "import diagnose, diagnose.analyzers as rules; print(diagnose.__file__); print(rules.__file__)"
    shown = subprocess.run([python, "-c", place], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert all(line.startswith(str(tmp_path / "installed")) for line in shown.stdout.splitlines())
