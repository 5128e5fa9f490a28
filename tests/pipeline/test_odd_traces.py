"""Recordings that contradict themselves or lack what rules ask for: an answer without a crash, and no absurd saving."""

import numpy as np
import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


def plain(r, *, num=30, streams=(7,), length=20.0, lag=8.0, **texts):
    """Two steps of operators that launch one kernel each, ``lag`` µs after their launch, round robin over streams."""
    for step in range(2):
        begin = step * num * 30
        r.step(step + 1, begin, begin + num * 30)
        for i in range(num):
            at = begin + i * 30
            r.op("aten::mm" if i % 2 else "aten::add", at, at + 20, **texts)
            start = at + 5 + lag
            r.kernel("kernel", start, start + length, launched=(at + 5, at + 8), stream=streams[i % len(streams)])


def without_shapes(r):
    plain(r)


def unreadable_shapes(r):
    plain(r, shapes="[[1, ?], nonsense", types="[", values="{}")


def impossible_shapes(r):
    plain(r, shapes="[[-1, 0], [0, 4]]", types='["float", "no such type"]')


def without_length(r):
    plain(r, length=0.0)


def clocks_apart(r):
    plain(r, lag=-400.0)  # every task begins long before it is launched


def clocks_drift(r):
    plain(r, lag=-2.0)


def a_circle_of_waits(r):
    plain(r, streams=(7, 8))
    kernels = [row for row in r.rows if row.name == "kernel"]
    first, second = kernels[2], kernels[3]
    first.cause, second.cause = second.cause, first.cause  # each is launched by the other's call
    first.values["awaits"], second.values["awaits"] = (row.cause.values["correlation"] for row in (second, first))


def cut_in_a_step(r):
    plain(r)
    r.rows = [row for row in r.rows if row.start < 1300 and (row.end < 1300 or row.name.startswith("ProfilerStep"))]


def eight_streams(r):
    plain(r, streams=tuple(range(7, 15)), length=200.0)


def unknown_operators(r):
    plain(r)
    for row in r.rows:
        row.name = row.name.replace("aten::", "mylib::")


def no_steps_and_no_launches(r):
    for i in range(50):
        r.kernel("kernel", i * 30, i * 30 + 10)


CASES = (
    without_shapes, unreadable_shapes, impossible_shapes, without_length, clocks_apart, clocks_drift,
    a_circle_of_waits, cut_in_a_step, eight_streams, unknown_operators, no_steps_and_no_launches,
)  # fmt: skip


def assert_sound(d):
    assert not [note.text for note in d.trust if "failed on this trace" in note.text]
    if d.partition:
        parts = (d.partition.compute, d.partition.exposed_communication, d.partition.exposed_copy, d.partition.idle)
        assert sum(parts) == pytest.approx(1)
        assert sum(d.idle_by_cause.values()) == pytest.approx(d.partition.idle)
    for finding in d.findings:
        assert 0 <= finding.lost_ns <= d.step_ns * 1.001, finding
    for p in d.prescriptions:
        assert 0 <= p.saves_ns[0] <= p.saves_ns[1] <= d.step_ns * 1.001, p
        assert 0 <= p.predicted_step_ns <= d.step_ns * 1.001, p
    for forecast in d.waterfall.forecasts if d.waterfall else ():
        assert 0 <= forecast.low_ns <= forecast.high_ns <= d.step_ns * 1.001


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_odd_recordings(recording, case):
    r = recording(devices=[A100])
    case(r)
    assert_sound(r.diagnosis())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (clocks_apart, " device tasks begin before they are launched, by up to 400 µs: the clocks"),
        (without_shapes, "No operator's shapes were recorded"),
        (no_steps_and_no_launches, "50 of 50 device tasks have no launch"),
    ],
)
def test_what_could_not_be_known_is_told(recording, case, said):
    r = recording(devices=[A100])
    case(r)
    assert any(said in note.text for note in r.diagnosis().trust)


@pytest.mark.parametrize("case", [without_shapes, eight_streams, cut_in_a_step, without_length])
def test_clocks_that_agree_are_not_doubted(recording, case):
    r = recording(devices=[A100])
    case(r)
    assert not any("clocks" in note.text for note in r.diagnosis().trust)


@pytest.mark.parametrize("num", [20_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_very_many_tiny_kernels(recording, num):
    r = recording(devices=[A100])
    step_us = num * 3 // 5
    for step in range(5):
        r.step(step + 1, step * step_us, (step + 1) * step_us)
    for i, at in enumerate(np.arange(0, 5 * step_us, 6).tolist()):
        for stream in (7, 8):
            r.kernel(f"kernel{i % 50}", at + 3, at + 4, stream=stream, launched=(at, at + 2))
    assert_sound(r.diagnosis())
