"""page-faults: memory that the C library gives back to the system and gets again. Times in ms."""

from dataclasses import replace

import pytest

from diagnose.analyzers import page_faults
from diagnose.model.events import Device
from diagnose.pipeline.find import build_tables
from tests.analyzers.flow_tables import steps, tables

FAULTS, EACH_NS = 100_000, 1000.0  # of a step of 400 ms a quarter


@pytest.fixture
def ran(recording, run_steps):
    def make(*, faults=FAULTS, each_ns=EACH_NS, num=20, devices=(), recorded=2, took=400.0):
        """Return a run of steps that all have so many faults, the recorded ones many more."""
        r = recording(devices=devices)
        r.step(1, 0, 500_000)
        r.op("aten::mm", 0, 500_000)
        if devices:
            r.kernel("gemm", 10, 400_000, launched=(1, 5))
        state = [0] * (num - recorded) + [2] * recorded
        r.run = run_steps([took] * num, state=state, page_faults=[faults * (1 + 9 * s) / 1e6 for s in state])
        r.with_info(flags={"num_threads": 2, "page_fault_ns": each_ns})
        return r

    return make


def test_what_faults_take_of_a_usual_step_is_that_share_of_the_recorded_one(ran, presentable):
    r = ran()
    finding = r.find("page-faults")
    assert finding.lost_ns == pytest.approx(0.25 * 500e6)
    assert finding.evidence == (
        "A usual step has 100,000 page faults without a read from storage, 410 MB: 25.0 % of it at 1.00 µs each, as "
        "measured in this process.",
    )
    (change,) = r.prescribe("page-faults")
    presentable(change)
    assert change.id == "keep-heap"
    assert change.after == "MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=2147483647 python train.py"
    assert change.saves_ns == (pytest.approx(0.3 * 125e6), pytest.approx(1.2 * 125e6))


@pytest.mark.parametrize(
    "change",
    [
        {"faults": 39_000},  # a tenth less a little
        {"each_ns": None},  # of a capture that did not measure it
        {"num": 6},  # four steps that were not recorded
        {"devices": (Device(0, "NVIDIA A100"),)},
    ],
)
def test_what_is_no_finding(ran, change):
    assert ran(**change).find("page-faults") is None


def test_no_more_than_the_step_is_lost(ran):
    assert ran(faults=900_000).find("page-faults").lost_ns == pytest.approx(500e6)


def test_faults_in_memory_that_operators_make_which_another_finding_names_are_its(recording, ran):
    """Of the memory that a step makes, three quarters are of an operator whose result nothing uses."""

    def made(t):
        t.op("rand", shape=(6000,))
        return t.op("randn", shape=(1000,))  # what reads it has a value as large

    t, run = tables(recording, steps(made)), ran(faults=300_000).tables().capture
    t = build_tables(replace(t.capture, run=run.run, info=run.info), t.trace)
    (finding,) = page_faults.find(t)
    assert finding.lost_ns == pytest.approx(0.75 * 0.25 * t.steps.step_ns)
    assert "75 % of the new memory is of operators that other findings name." in finding.evidence[0]
