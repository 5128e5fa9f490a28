"""Attributes that no line reads: what they hold at the end of the steps is not needed."""

import importlib.util
import sys

import pytest
import torch

from diagnose.capture.dataflow import table as unread
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.liveness import dead_work
from tests.capture.flows import record_dataflow
from tests.dataflow.table import lines

SOURCE = """
import torch

class Meter:
    def __init__(self):
        self.smoothed = torch.zeros(4)
        self.counts = torch.zeros(4)

    def update(self, x):
        spread = (x[:, None] - x[None, :]).abs().mean(0)
        self.smoothed = 0.9 * self.smoothed + 0.1 * spread
        self.counts.index_add_(0, torch.arange(4), spread)

meter = Meter()

def step():
    x = torch.randn(4)
    meter.update(x)
    return x.sum().item()
"""


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """Return the lines of the dead work of a script with these lines behind it."""

    def found(more=""):
        path = tmp_path / "metered.py"
        path.write_text(SOURCE + more)
        spec = importlib.util.spec_from_file_location("metered", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "metered", module)
        monkeypatch.setattr(unread, "is_users_file", str(path).__eq__)  # no test beside it
        spec.loader.exec_module(module)
        flow = record_dataflow(module.step)
        return sorted(line for one in dead_work(graph_of(flow)) for line in lines(one.work))

    return found


def test_a_running_statistic_that_no_line_reads_is_dead(dead):
    assert set(dead()) >= {10, 11, 12}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("def report():\n    print(meter.smoothed)\n", {12}),
        ("def report():\n    print(meter.smoothed, meter.counts)\n", set()),
        ("def report():\n    print(vars(meter))\n", set()),
        ('NAMES = ["smoothed", "counts"]\n', set()),
        ("def report():\n    torch.save(meter, 'meter.pt')\n", set()),
    ],
)
def test_one_that_a_line_may_read_is_not(dead, more, expected):
    assert set(dead(more)) & {11, 12} == expected


def test_a_local_variable_that_is_printed_at_last_is_needed():
    total = [torch.zeros(())]

    def step():
        total[0] = total[0] + torch.randn(4).sum()

    assert dead_work(graph_of(record_dataflow(step))) == ()
