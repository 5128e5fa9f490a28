"""NVML's series, laid over the recorded steps."""

from dataclasses import replace

import msgspec

from diagnose.model.capture import CaptureInfo
from diagnose.model.records import GpuReadings, NvmlRecord
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.timeline import readings


def recorded(recording, times_us, **series):
    r = recording()
    for number, at in ((7, 0), (8, 1000)):
        r.step(number, at, at + 1000)
        r.kernel("gemm", at, at + 900, launched=(at, at + 5))
    time = tuple(r.epoch_ns + 1000 * us for us in times_us)
    gpu = GpuReadings(index=0, time_ns=time, max_sm_mhz=1980.0, **series)
    r.info = CaptureInfo(nvml=NvmlRecord(available=True, gpus=(gpu,)))
    return r


def test_a_reading_stands_in_its_step_where_it_was_taken(recording):
    r = recorded(recording, (-500, 250, 1500, 2500), sm_mhz=(100.0, 1980.0, 1500.0, 100.0))
    assert [(s.name, s.unit, s.points, s.limit) for s in readings(r.tables())] == [
        ("SM clock", "MHz", ((0.25, 1980.0), (1.5, 1500.0)), 1980.0),
    ]  # fmt: skip


def test_what_the_board_did_not_answer_is_left_out(recording):
    r = recorded(recording, (250, 500, 750), sm_mhz=(None, 1500.0, None), power_w=(None, None, None))
    assert [(s.name, s.points) for s in readings(r.tables())] == [("SM clock", ((0.5, 1500.0),))]


def test_readings_of_another_gpu_and_without_the_clock_are_not_shown(recording):
    r = recorded(recording, (250,), sm_mhz=(1500.0,))
    gpu = msgspec.structs.replace(r.info.nvml.gpus[0], index=1)
    r.info = msgspec.structs.replace(r.info, nvml=NvmlRecord(available=True, gpus=(gpu,)))
    assert readings(r.tables()) == ()
    r = recorded(recording, (250,), sm_mhz=(1500.0,))
    t = r.tables()
    assert readings(t, replace(t.trace, epoch_ns=0)) == ()


def test_where_the_cost_of_recording_was_taken_out_the_recorded_steps_count(recording):
    r = recorded(recording, (1500,), sm_mhz=(1500.0,))
    slow, t = r.tables().trace, r.tables()
    half = replace(t.trace.events, start=t.trace.events.start // 2, end=t.trace.events.end // 2)
    quick = build_tables(t.capture, replace(t.trace, events=half))
    assert readings(quick, slow)[0].points == ((1.5, 1500.0),)
