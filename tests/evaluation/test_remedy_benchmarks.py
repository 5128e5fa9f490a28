"""The benchmarks of remedies compare like with like, and say what was not measured."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script of evaluation/benchmarks as its siblings do."""
    monkeypatch.syspath_prepend(str(ROOT / "evaluation" / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "fixtures"))
    yield importlib.import_module
    for name in ("rows", "ops", "remedies_loading", "remedies_memory", "slow_dataset", "models", "harness"):
        sys.modules.pop(name, None)


def test_what_is_written_out_is_what_the_operator_calculates(load):
    for subject in load("ops").SUBJECTS:
        torch.manual_seed(0)
        arguments = subject.make(1 << 14, torch.float32, "cpu")
        expected = subject.written(*arguments)
        torch.testing.assert_close(subject.ours(*arguments), expected, msg=lambda m, n=subject.name: f"{n}: {m}")
        if subject.builtin is not None:
            torch.testing.assert_close(subject.builtin(*arguments), expected)


def test_accumulation_holds_its_bar_and_plain_division_would_not(load):
    loading = load("remedies_loading")
    [row] = loading.accumulated(True)
    assert row.holds
    assert float(row.after) <= loading.EXACT < 1e-3 < float(row.before.split()[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there, and would be measured")
def test_what_needs_a_gpu_says_so(load):
    rows = list(load("remedies_loading").on_device(True))
    assert [row.after for row in rows] == ["not yet measured on a GPU"] * 2
    assert not load("rows").missed(rows)


def test_both_sides_train_the_same(load):
    loading = load("remedies_loading")
    batches = [[torch.rand(4, 3, 32, 32), torch.arange(4)]] * 2
    one, other = loading.Training(batches), loading.Training(iter(batches))
    assert one.epoch() > 0
    other.epoch()
    assert all(map(torch.equal, one.losses, other.losses))


def test_a_missed_bar_is_seen(load):
    rows, faster = load("rows"), load("remedies_loading")._faster
    slow, quick, free = faster("a", 2.0, 1.5, 1.5), faster("b", 2.0, 1.0, 1.5), faster("c", 1.0, 2.0)
    assert [row.holds for row in (slow, quick, free)] == [False, True, None]
    assert rows.missed([quick, slow])
    assert not rows.missed([quick, free])
    assert rows.table([slow]).splitlines()[-1] == "| a | 2000.00 ms | 1500.00 ms | 1.33× | **no** |"


def test_medians_of_runs_that_take_turns(load):
    order, times = [], {"a": iter([9.0, 1.0, 3.0, 2.0]), "b": iter([9.0, 4.0, 4.0, 6.0])}

    def run(name):
        return lambda: (order.append(name), next(times[name]))[1]

    assert load("rows").in_turns([run("a"), run("b")], 3, dropped=1) == [2.0, 4.0]
    assert order == ["a", "b"] * 4
