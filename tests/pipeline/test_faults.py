"""A fault of one rule, or of one part of the answer, becomes a note; the others go on."""

import re
from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import gc_pause, python_stall
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.changes import schedule_gc
from diagnose.pipeline import find
from diagnose.pipeline.run import analyze_captures
from diagnose.reports.json import schema


def broken(*_args):
    raise ZeroDivisionError("by chance")


def ids(findings):
    return [f.rule for f in findings]


def several(late):
    """Give the gap two causes: 100 µs of collection and 290 of Python."""
    late.gc(300, 400)
    return late


@pytest.mark.usefixtures("noted")
def test_a_rule_that_fails_becomes_a_note_and_the_others_go_on(late, monkeypatch):
    monkeypatch.setattr(python_stall, "find", broken)
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["gc-pause", "launch-bound"]
    (note,) = [note for note in answer.trust if note.rule == "python-stall"]
    assert note.text == "The rule python-stall failed on this trace (ZeroDivisionError: by chance)."


@pytest.mark.usefixtures("noted")
def test_so_does_one_whose_claim_fails(late, monkeypatch):
    monkeypatch.setattr(gc_pause, "claim", broken)
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["python-stall", "launch-bound"]
    assert [note.rule for note in answer.trust if note.rule] == ["gc-pause"]


@pytest.mark.usefixtures("noted")
def test_so_does_one_that_claims_no_intervals(late, monkeypatch):
    monkeypatch.setattr(gc_pause, "claim", lambda _t, _left: None)
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["python-stall", "launch-bound"]
    assert [note.rule for note in answer.trust if note.rule] == ["gc-pause"]


@pytest.mark.usefixtures("noted")
def test_so_does_one_that_fails_while_its_findings_are_taken(late, monkeypatch):
    monkeypatch.setattr(python_stall, "find", lambda _t: (broken() for _ in range(1)))
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["gc-pause", "launch-bound"]
    assert [note.rule for note in answer.trust if note.rule] == ["python-stall"]


@pytest.mark.usefixtures("noted")
def test_so_does_one_that_fails_on_the_attribution_window_only(late, recording, monkeypatch):
    named = recording()
    named.step(1, 0, 1000)
    named.kernel("gemm", 0, 1000, launched=(-20, -15))
    find = python_stall.find
    monkeypatch.setattr(python_stall, "find", lambda t: broken() if "relu" not in t.trace.names else find(t))
    answer = late.diagnosis(named)
    assert ids(answer.findings) == ["python-stall", "launch-bound"]
    assert [note.rule for note in answer.trust if note.rule] == ["python-stall"]


@pytest.mark.usefixtures("noted")
def test_so_does_a_part_of_the_answer(late, monkeypatch):
    for name in ("host_operators", "roofline", "estimated_share"):
        monkeypatch.setattr(f"diagnose.pipeline.rank.{name}", broken)
    monkeypatch.setitem(find.SEARCHES, "memory", broken)
    monkeypatch.setattr("diagnose.pipeline.find.trust_notes", broken)
    answer = late.diagnosis()
    assert (answer.memory, answer.operators, answer.roofline, answer.recording_estimate) == (None, (), None, 0.0)
    failed = [note.rule for note in answer.trust if note.rule]
    of_memory = {"memory-pressure", "memory-fragmentation", "memory-headroom"}  # which read what was not found
    assert of_memory & set(failed)
    assert set(failed) - of_memory == {"trust", "operators", "roofline", "memory", "profiler-overhead"}


@pytest.mark.usefixtures("noted")
def test_a_note_of_any_part_fits_the_schema(late, monkeypatch):
    parts = ("host_operators", "to_try", "code_times", "plain_steps", "passes_per_update", "phase_shares")
    for name in parts:
        monkeypatch.setattr(f"diagnose.pipeline.rank.{name}", broken)
    failed = [note.rule for note in late.diagnosis().trust if "by chance" in note.text]
    assert len(failed) == len(parts)
    pattern = re.compile(schema()["$defs"]["rule"]["pattern"])
    assert [name for name in failed if not pattern.search(name)] == []


@pytest.mark.parametrize("broken_part", ["pipeline.run.job_of", "analyzers.straggler.find_in_all"])
@pytest.mark.usefixtures("noted")
def test_so_does_the_comparison_of_ranks(late, monkeypatch, broken_part):
    captures = [replace(late.capture(), trace=replace(late.capture().trace, rank=n)) for n in range(2)]
    monkeypatch.setattr(f"diagnose.{broken_part}", broken)
    answer = analyze_captures(captures)
    assert len(answer.ranks) == 2
    assert [note.text for note in answer.trust if "by chance" in note.text] != []


def test_under_debug_a_fault_is_raised(late, monkeypatch):
    monkeypatch.setattr(python_stall, "find", broken)
    with pytest.raises(ZeroDivisionError, match="by chance"):
        late.diagnosis()


@pytest.mark.usefixtures("noted")
def test_so_does_one_that_cannot_prescribe(late, monkeypatch):
    monkeypatch.setattr(schedule_gc, "CHANGE", replace(schedule_gc.CHANGE, proposal=broken))
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["python-stall", "gc-pause", "launch-bound"]
    assert "gc-pause" not in {p.rule for p in answer.prescriptions}
    assert "gc-pause" in {note.rule for note in answer.trust}


def test_kernels_without_length_are_no_waste(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("elementwise_kernel_add", 500, 500, launched=(480, 485))
    t = r.tables()
    assert kernel_finding(t, KernelRule("unfused-elementwise", "Small kernels", 0.1), np.arange(len(t.tasks.row))) == []
