"""Whether a recording is of a program without Python."""

import pytest

from diagnose.tables.python_calls import runs_no_python


def serving(recording, *, name="Stage::run", beside=None):
    """Return eleven requests of 2 ms with a mark each and an operator of 100 µs at both ends."""
    r = recording(devices=())
    for i in range(11):
        at = 2000 * i
        r.annotation(name, at, at + 2000)
        r.op("aten::slice", at, at + 100)
        r.op("aten::sum", at + 1900, at + 2000)
    if beside:
        r.annotation(beside, 0, 10)
    return r


def test_marks_of_cpp_and_nothing_of_python(recording):
    assert runs_no_python(serving(recording).tables())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "request"},  # a name that either may give
        {"beside": "ProfilerStep#3"},
        {"beside": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
        {"beside": "serve.py(3): main"},
    ],
)
def test_what_may_be_python(recording, change):
    assert not runs_no_python(serving(recording, **change).tables())


def test_a_capture_is_of_a_script(recording):
    r = serving(recording)
    r.with_info(torch="2.8.0")
    assert not runs_no_python(r.tables())


def test_what_runs_between_operators_is_not_called_python(recording):
    python, native = serving(recording, name="request").diagnosis(), serving(recording).diagnosis()
    assert "python-stall" in {f.rule for f in python.findings}
    assert "python-stall" not in {f.rule for f in native.findings}
    assert (native.findings[0].rule, native.findings[0].lost_ns) == ("unexplained-host", 1_800_000)
    assert (native.dominant, native.findings[0].worth_ns) == (None, 0.0)  # what has no known cause is no answer
    assert native.findings[0].where[0].op == "Stage::run"
    assert any("Nothing in this recording shows Python" in note.text for note in native.trust)
