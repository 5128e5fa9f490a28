"""What is advised for Python between operators: less of it, elsewhere, or at once but vectorised."""

from dataclasses import replace

import pytest

from diagnose.analyzers import python_stall
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.records import DequeRecord
from diagnose.pipeline.find import build_tables

PLACE = Where("train.py", 40, "write")


def test_python_that_computes_is_made_cheaper_first(late):
    late.samples_every(10, 210, 680, ("train.py", 40, "encode"), 1)
    (p,) = late.prescribe("python-stall")
    assert p.title.startswith("Make the Python work at train.py:40")
    assert p.saves_ns[0] < 0.5 * p.saves_ns[1]
    assert p.is_advice


@pytest.mark.parametrize(
    ("place", "facts", "title"),
    [
        (PLACE, {}, "Make the Python work at train.py:40 cheaper"),
        (PLACE, {"waiting_share": 0.9}, "Move the Python work at train.py:40 off the training thread"),
        (PLACE, {"after_read": 0.6}, "Do the Python work at train.py:40 on the device"),
        (PLACE, {"in_pass": 0.6}, "Vectorise the Python work at train.py:40"),
        (replace(PLACE, caller="module"), {}, "Vectorise the Python work at train.py:40"),
        (replace(PLACE, caller="hook"), {}, "Run the Python work of the hook at train.py:40 in fewer steps"),
        (replace(PLACE, library="pandas/core.py:3 in get"), {}, "Call the library at train.py:40 one step ahead"),
    ],
)
def test_what_is_advised_follows_from_what_the_recording_shows(presentable, place, facts, title):
    (p,) = prescribe(Finding("python-stall", "", 1e6, where=(place,), facts=facts), 1e7)
    presentable(p)
    assert p.title.startswith(title)


def test_a_librarys_work_is_hidden_by_the_rest_of_the_step_alone():
    place = replace(PLACE, library="pandas/core.py:3 in get")
    (p,) = prescribe(Finding("python-stall", "", 8e6, where=(place,)), 1e7)
    assert p.saves_ns == (0.0, 2e6)


@pytest.mark.parametrize(("until", "advised"), [(690, False), (400, True)])
def test_nothing_is_advised_for_what_passes_in_an_optimizers_step(late, until, advised):
    late.annotation("Optimizer.step#SGD.step", 350, until)
    late.sample(310, ("train.py", 40, "update"))  # the only one: a line that has few samples by chance
    late.lines["train.py", 40] = "hits[c] += found.sum().item()"
    assert late.find("python-stall").where[0].line == 40
    assert [p.id for p in late.prescribe("python-stall")] == ["python-off-the-loop"] * advised


def test_a_line_that_indexes_a_deque_is_named_with_the_deque(late):
    late.samples_every(10, 210, 680, ("train.py", 40, "sample"), 1)
    late.lines["train.py", 40] = "return [self.items[row] for row in rows]"
    record = DequeRecord(line=40, last=40, name="self.items", built=12)
    capture = replace(late.capture(), deques={"train.py": (record,)})
    t = build_tables(capture, capture.trace)
    (finding,) = python_stall.find(t)
    (p,) = prescribe(finding, t.steps.step_ns)
    assert [place.line for place in finding.where[:2]] == [40, 12]
    assert finding.title == "Indexing the deque self.items takes longer the more it holds"
    assert p.title == "Keep self.items as a list whose oldest item is written over (train.py:40)"
