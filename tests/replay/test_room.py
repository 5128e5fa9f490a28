"""Tasks that wait for room on the device. Times in µs."""

import pytest

from diagnose.model.events import Device
from diagnose.replay import Edge, build, scale_kernels
from tests.replay.graph_times import ends


@pytest.mark.parametrize(
    ("gave", "waits"),
    [((50, 152), False), ((50, 900), False), ((50, 210), True), ((180, 240), False)],
    ids=["ended long before", "has long to run", "in its last wave", "has most of it to run"],
)
def test_a_task_waits_for_the_kernel_in_whose_last_wave_it_starts(recording, gave, waits):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("fills", *gave, launched=(0, 5), grid=4096)
    r.kernel("side", 200, 220, stream=9, launched=(60, 65))
    graph = build(r.tables())
    assert (graph.kind == Edge.ROOM).sum() == waits


def test_a_task_that_got_room_starts_as_much_earlier_as_the_kernel_that_filled_the_device(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("fills", 50, 210, launched=(0, 5), grid=4096)
    r.kernel("side", 200, 220, stream=9, launched=(60, 65))
    t = r.tables()
    assert ends(scale_kernels(build(t), t.trace, "fills", 0.75), "side", t) == [180]


def test_a_kernel_that_leaves_room_holds_no_other_stream(recording):
    r = recording(devices=(Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0)),))
    r.step(1, 0, 1000)
    r.kernel("small", 50, 210, launched=(0, 5), grid=16)
    r.kernel("side", 200, 220, stream=9, launched=(60, 65))
    assert not (build(r.tables()).kind == Edge.ROOM).any()
