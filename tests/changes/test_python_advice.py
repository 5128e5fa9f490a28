"""What is advised for Python between operators: log less, compute less, or move it."""

from dataclasses import replace

import pytest

from diagnose.analyzers import python_stall
from diagnose.changes import python_off_the_loop
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.records import LookupRecord
from diagnose.pipeline.find import build_tables


@pytest.mark.parametrize(
    ("function", "code", "logs"),
    [
        ("log_step", "for name, p in model.named_parameters():", True),
        ("histogram", "counts, edges = np.histogram(values, bins=bins)", True),
        ("step", 'writer.add_scalar("loss", total, step)', True),
        ("step", "logger.info(format_all(rows))", True),
        ("augment", "rows = [f(row) for row in rows]", False),
        ("catalog", "item = catalog.get(key)", False),
        ("train_and_log", "rows = dialog.parse(text)", False),
        ("mix", "x = x.add_noise(0.1)", False),
    ],
)
def test_what_is_logged_is_logged_in_fewer_steps(late, function, code, logs):
    late.samples_every(10, 210, 680, ("train.py", 40, function), 1)
    late.lines["train.py", 40] = code
    (p,) = late.prescribe("python-stall")
    assert (p.title == "Log in fewer steps at train.py:40") == logs
    assert p.id == "python-off-the-loop"


@pytest.mark.parametrize(("running", "title"), [(1, "Make the Python work"), (0, "Move the Python work")])
def test_python_that_computes_is_made_cheaper_first(late, running, title):
    late.samples_every(10, 210, 680, ("train.py", 40, "encode"), running)
    (p,) = late.prescribe("python-stall")
    assert p.title.startswith(f"{title} at train.py:40")
    assert (p.saves_ns[0] < 0.5 * p.saves_ns[1]) == bool(running)


@pytest.mark.parametrize(("until", "advised"), [(690, False), (400, True)])
def test_nothing_is_advised_for_what_passes_in_an_optimizers_step(late, until, advised):
    late.annotation("Optimizer.step#SGD.step", 350, until)
    late.sample(310, ("train.py", 40, "update"))  # the only one: a line that has few samples by chance
    late.lines["train.py", 40] = "hits[c] += found.sum().item()"
    assert late.find("python-stall").where[0].line == 40
    assert [p.id for p in late.prescribe("python-stall")] == ["python-off-the-loop"] * advised


THREAD, PROCESS = "background thread", "another process; a thread would only take turns with the training"


def test_the_pages_state_the_same_of_threads_and_processes_as_the_report(late):
    assert THREAD in page(python_off_the_loop)
    assert PROCESS in page(python_off_the_loop)
    assert "do it in another process" in page(python_stall)
    assert "a thread would only take turns with the training" in page(python_stall)
    assert THREAD in page(python_stall)
    late.samples_every(10, 210, 680, ("train.py", 40, "encode"), 1)
    (computes,) = late.prescribe("python-stall")
    assert THREAD not in computes.after
    assert "a thread would only take turns with the training" in computes.after


@pytest.mark.parametrize(("facts", "both"), [({"waiting_share": 0.9}, False), ({}, True)])
def test_both_are_named_only_where_no_samples_show_which_it_is(facts, both):
    place = Where("train.py", 40, "write")
    (p,) = prescribe(Finding("python-stall", "", 1e6, where=(place,), facts=facts), 1e7)
    assert THREAD in p.after
    assert (PROCESS in p.after) == both


def page(module):
    return " ".join(module.__doc__.split())


@pytest.mark.parametrize("indexed", [False, True])
def test_a_line_that_goes_through_a_list_or_a_deque_is_told_what_finds_values_at_once(late, presentable, indexed):
    late.samples_every(10, 210, 680, ("train.py", 40, "sample"), 1)
    late.lines["train.py", 40] = "return [self.items[row] for row in rows]"
    record = LookupRecord(line=40, last=40, name="self.items", built=12, indexed=indexed)
    capture = replace(late.capture(), lookups={"train.py": (record,)})
    t = build_tables(capture, capture.trace)
    (finding,) = python_stall.find(t)
    (change,) = prescribe(finding, t.steps.step_ns)
    presentable(change)
    assert [place.line for place in finding.where[:2]] == [40, 12]
    if indexed:
        assert finding.title == "Indexing the deque self.items takes longer the more it holds"
        assert change.title == "Find values at train.py:40 in a list or an array in place of the deque self.items"
        assert "train.py:12 makes self.items a deque" in change.after
    else:
        assert finding.title == "Searching the list self.items takes longer the more it holds"
        assert "self.items_set = set(self.items)" in change.after
