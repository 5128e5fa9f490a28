"""Which variables hold values of earlier steps, in loops that keep them in different ways."""

import sys
from collections import deque
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
from diagnose.capture.dataflow.window import DataflowWindow  # noqa: E402  # needs torch
from diagnose.monitor.holders import Holder, holders, storing_lines  # noqa: E402

STORED = {}


@dataclass(slots=True)
class Slots:
    items: list


class Owner:
    def __init__(self):
        self.records = []

    @property
    def secret(self):
        raise AssertionError("a property was read")

    def __getattr__(self, name):
        raise AssertionError(f"{name} was read")


def found_after(step, num_steps=2):
    with DataflowWindow() as window:
        for _ in range(num_steps):
            step()
            window.end_step()
        return holders(window)


def names(found):
    return {(one.name, one.kind, one.num, one.keeps_graph) for one in found}


def test_a_container_is_one_holder_whatever_its_members_are():
    owner, slots, keyed = Owner(), Slots([]), {i: torch.zeros(1) for i in range(50)}

    def step():
        out = torch.ones(4).exp()
        owner.records.append({"at": 1, "pair": (out, "name")})
        slots.items.append(torch.ones(2).exp())
        keyed[len(keyed)] = torch.ones(3).exp()
        STORED[f"step {len(STORED)}"] = torch.ones(5).exp()

    for _ in range(40):
        step()
    assert names(found_after(step)) == {
        ("owner.records", "list", 42, False),
        ("slots.items", "list", 42, False),
        ("keyed", "dict", 92, False),
        ("STORED", "dict", 42, False),
    }


@pytest.mark.parametrize("kind", [list, deque, dict.fromkeys])
def test_of_a_long_container_both_ends_are_looked_at(kind):
    before, held = list(range(600_000)), kind(range(300_000))

    def step():
        out = torch.ones(4).exp()
        if isinstance(held, dict):
            held[-len(held)] = out
        elif isinstance(held, deque):
            held.appendleft(out)
        else:
            held.append(out)

    (one,) = found_after(step)
    assert (one.name, one.num, len(before)) == ("held", 300_002, 600_000)


def test_what_is_replaced_or_was_there_before_is_held_by_nobody():
    recent, weight = deque(maxlen=1), torch.ones(4, requires_grad=True)
    scaled = weight.exp()  # a graph from before the steps
    total = torch.zeros(4)

    def step():
        out = weight * scaled
        recent.append(out)
        total.add_(out.detach())

    assert found_after(step) == []
    assert len(recent) == 1


def test_a_tensor_whose_graph_reaches_the_step_before_holds_it():
    weight = torch.ones(4, requires_grad=True)
    state = {"hidden": torch.zeros(4)}

    def step():
        state["hidden"] = (state["hidden"] + weight).tanh()

    (one,) = found_after(step)
    assert (one.name, one.kind, one.keeps_graph) == ("state['hidden']", "Tensor", True)


def test_a_view_that_was_written_to_keeps_its_node():
    weight = torch.ones(4, requires_grad=True)
    views = []

    def step():
        base = weight.exp()
        view = base[:2]
        base.mul_(2)
        views.append(view)

    step()
    before = torch._C._autograd._get_sequence_nr()
    found = found_after(lambda: None)
    assert found == []
    assert torch._C._autograd._get_sequence_nr() == before


def test_variables_of_functions_that_run_are_let_go():
    """Up to Python 3.12 a copy of a function's variables would stay at its frame."""

    def train():
        held = Owner()
        references = sys.getrefcount(held)
        assert found_after(lambda: None) == []
        assert sys.getrefcount(held) == references

    train()


SOURCE = """
losses = []

def train(self):
    self.log["loss"].append(1)
    self.log["mean"].append(2)
    losses[0] = 3
    total = 0
    total = total + 1
    total += 1
    out, state = net(x, state)
    queue.setdefault("a", []).append(1)

def evaluate(self):
    self.log["loss"].append(1)
"""


@pytest.mark.parametrize(
    ("name", "key", "lines"),
    [
        ("log", "loss", (5,)), ("log", "", (5, 6)), ("losses", "", (7,)), ("total", "", (9, 10)), ("state", "", (11,)),
        ("queue", "", (12,)), ("other", "", ()),
    ],
)  # fmt: skip
def test_the_lines_that_store_are_those_of_functions_that_ran(tmp_path, name, key, lines):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    holder = Holder(name, "list", 1, frozenset(), False, str(path), "", name, key)
    assert storing_lines(holder, {"train"}) == lines


def test_without_a_source_no_line_is_known():
    assert storing_lines(Holder("a", "list", 1, frozenset(), False, "<string>", "", "a", ""), set()) == ()
