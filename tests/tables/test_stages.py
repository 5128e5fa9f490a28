"""Tables are computed in one order: each before what reads it, once, and none because it was asked for."""

import inspect

import pytest

from diagnose.tables import Tables, stages
from diagnose.tables.stages import CALLS, HOST, IDLE, RUN, TOLD, WAITS, begin

IN_ORDER = WAITS | RUN | HOST | IDLE | CALLS | TOLD


def computing(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    return r


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_table_is_a_field_of_the_type_that_its_function_returns(name):
    declared = inspect.get_annotations(Tables)[name]
    returned = inspect.get_annotations(IN_ORDER[name])["return"]
    assert declared.replace("device.", "").replace("host.", "") == returned


def test_each_table_is_computed_once_and_stays(recording):
    t = computing(recording).tables()
    assert set(get_fields(Tables)) == set(vars(t))
    with pytest.raises(AttributeError, match="the table gaps is there already"):
        t.gaps = t.gaps


def get_fields(kind):
    return [name for name in inspect.get_annotations(kind) if not name.startswith("__")]


def test_what_the_length_of_a_step_does_not_need_is_a_stage_that_is_not_run(recording):
    capture = computing(recording).capture()
    t = begin(capture, capture.trace)
    assert t.steps.step_ns == 1_000_000
    assert not hasattr(t, "work_layers")
    assert not hasattr(t, "causes")


def test_a_table_that_fails_costs_what_reads_it_and_is_named(recording, monkeypatch):
    monkeypatch.delenv("DIAGNOSE_DEBUG")
    monkeypatch.setitem(stages.TOLD, "step_calls", lambda _t: 1 / 0)
    d = computing(recording).diagnosis()
    assert "The table step_calls failed on this trace (ZeroDivisionError: division by zero)." in [
        note.text for note in d.trust
    ]
    assert d.step_ns == 1_000_000
