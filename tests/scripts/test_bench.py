"""The benchmark against Holistic Trace Analysis: each trace has a row, and is held to its own bar."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benchmarks"))
    yield importlib.import_module("bench")
    for name in ("bench", "measure"):
        sys.modules.pop(name, None)


def result(bench, trace, size_mb, faster, memory_share):
    cost = bench.Cost(1.0, 1.0, 100.0)
    return bench.Result(trace, size_mb, size_mb, cost, bench.Cost(faster, faster, 100.0 / memory_share), 5)


def test_a_trace_is_held_to_its_own_bar(bench):
    further = bench.FURTHER_TRACES[0]
    assert not result(bench, bench.DEFAULT_TRACE, 60, 7.0, 0.2).holds
    assert result(bench, bench.DEFAULT_TRACE, 60, 8.0, 0.2).holds
    assert result(bench, further, 60, 7.0, 0.2).holds
    assert not result(bench, further, 60, 7.0, 0.21).holds
    assert not result(bench, further, 1000, 19.0, 0.05).holds
    assert result(bench, further, 10, 1.0, 1.0).holds  # a size without a bar


def test_the_page_has_a_row_for_each_trace_and_size(bench):
    results = [result(bench, trace, 60, 7.0, 0.125) for trace in (bench.DEFAULT_TRACE, *bench.FURTHER_TRACES)]
    page = bench.report(results, bench.OwnCosts(0.1, 100, 0.1, 0.01, 0.01))
    rows = [line for line in page.splitlines() if line.startswith("| ") and "MB |" in line]
    assert [row.split(" | ")[0] for row in rows] == [
        "| hta_dlrm_v100_test",
        "| hta_rn_ddp_v100_ns",
        "| tl_xdit_sd35_mi300",
    ]
    assert [row.split(" | ")[-1] for row in rows] == ["missed |", "met |", "met |"]
    assert "1/8.0" in rows[0]
