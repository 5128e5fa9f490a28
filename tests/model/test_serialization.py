"""Python's collector is held back for a while and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from diagnose.model.serialization import pack, unpack, without_collector
from diagnose.pipeline.rank import analyze_rank
from diagnose.trace_reader import open_captures


@pytest.fixture(autouse=True)
def _as_before():
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_as_it_was_afterwards_after_an_error_too(is_on):
    (gc.enable if is_on else gc.disable)()
    with pytest.raises(ZeroDivisionError):
        without_collector()(_fail_beside_no_collector)()
    assert gc.isenabled() == is_on


def _fail_beside_no_collector() -> None:
    assert not gc.isenabled()
    raise ZeroDivisionError


def test_a_diagnosis_comes_back_as_it_was():
    (capture,) = open_captures(["fixtures/captures/slow_dataset"])
    diagnosis = analyze_rank(capture)
    assert repr(unpack(pack(diagnosis))) == repr(diagnosis)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04.",
        b"\xc1",
        b"\x92\xa4Note",
        b"\x93\xa4Path\xa1x\xa1y",
        b"\x94\xa1#\xa2|O\x91\x01\xc4\x08" + bytes(8),
    ],
)
def test_bytes_that_hold_no_result_are_refused(data):
    with pytest.raises(ValueError, match="these bytes hold no result"):
        unpack(data)


def test_what_is_no_result_is_not_packed():
    with pytest.raises(TypeError, match="PosixPath is not a type of a result"):
        pack({"a": __import__("pathlib").Path("x")})
