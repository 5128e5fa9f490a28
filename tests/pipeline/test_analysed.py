"""The analyses of a data flow: a stage that runs once for a capture, and whose fault costs its own rules alone."""

import pytest

from diagnose import dataflow
from diagnose.pipeline.rank import analyze_rank
from tests.analyzers.flow_tables import steps, tables
from tests.analyzers.test_dead_work import with_metric


@pytest.fixture
def capture(recording):
    return tables(recording, steps(with_metric)).capture


def test_they_run_once_for_both_windows_and_for_the_steps_without_the_profiler(capture, monkeypatch):
    seen, analyse = [], dataflow.analyse
    monkeypatch.setattr(dataflow, "analyse", lambda *flows: seen.append(flows) or analyse(*flows))
    found = analyze_rank(capture)
    assert seen == [(capture.dataflow, capture.long_step)]
    assert capture.attribution is not None
    assert "dead-work" in [finding.rule for finding in found.findings]


def test_a_fault_in_them_is_a_note(capture, monkeypatch):
    def fails(*_flows):
        raise ZeroDivisionError

    monkeypatch.delenv("DIAGNOSE_DEBUG")
    monkeypatch.setattr(dataflow, "analyse", fails)
    found = analyze_rank(capture)
    assert "dead-work" not in [finding.rule for finding in found.findings]
    assert [note.rule for note in found.trust if note.rule] == ["data flow"]
