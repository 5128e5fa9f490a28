"""buffer-broadcast: broadcasts that DistributedDataParallel's forward launches."""

from dataclasses import replace

import pytest

from diagnose.pipeline.find import build_tables
from tests.conftest import analyzer
from tests.dataflow.table import Table

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def forward(recording, *, name=BROADCAST, alone=100, launched=(10, 15), op="DistributedDataParallel.forward"):
    """Return a step of 1000 µs whose first 50 µs are the forward's; the broadcast runs from 100.

    A task from before keeps the device until then, so the window has 900 µs.
    """
    r = recording()
    r.step(1, 0, 1000)
    r.op(op, 0, 50)
    r.kernel("gemm", 0, 100, launched=(-20, -15))
    r.kernel(name, 100, 100 + alone, stream=20, launched=launched)
    r.kernel("relu", 100 + alone, 1000, launched=(20, 25))
    return r


def test_a_broadcast_that_the_forward_launched(recording):
    r = forward(recording)
    finding = r.find("buffer-broadcast")
    assert (finding.lost_ns, finding.count, finding.total_ns, finding.median_ns) == (100_000, 1, 100_000, 100_000)
    assert finding.where[0].op == "DistributedDataParallel.forward"
    assert finding.evidence == ("1.0 broadcasts a step inside DistributedDataParallel.forward.",)


@pytest.mark.parametrize(("alone", "fires"), [(1.7, False), (1.8, True)])
def test_less_than_two_thousandths_of_the_step_are_not_worth_a_line(recording, alone, fires):
    assert (forward(recording, alone=alone).find("buffer-broadcast") is not None) == fires


@pytest.mark.parametrize("launched", [(-10, -5), (51, 55)])
def test_a_broadcast_launched_elsewhere(recording, launched):
    assert forward(recording, launched=launched).find("buffer-broadcast") is None


@pytest.mark.parametrize(
    "change", [{"name": "ncclDevKernel_AllReduce_Sum"}, {"op": "Model.forward"}, {"name": "broadcast_add"}]
)
def test_what_is_no_broadcast_of_ddp(recording, change):
    assert forward(recording, **change).find("buffer-broadcast") is None


def test_a_broadcast_hidden_under_compute(recording):
    r = forward(recording)
    r.kernel("gemm", 90, 210, stream=9, launched=(16, 18))
    assert r.find("buffer-broadcast") is None


def test_the_broadcast_is_switched_off(recording):
    (p,) = forward(recording).prescribe("buffer-broadcast")
    assert p.id == "no-buffer-broadcast"
    assert p.title == "Do not broadcast buffers in every forward"
    assert "broadcast_buffers=False" in p.after
    assert p.saves_ns == (70_000, 100_000)
    assert "batch-norm statistics" in p.safety


def test_its_time_is_counted_once(recording):
    answer = forward(recording, alone=800).diagnosis()
    assert sum(f.lost_ns for f in answer.findings) <= 800_000


def many_buffers(recording, *, kernel=BROADCAST, sent=True):
    """Return a step of 1000 µs whose host gathers, sends and copies 20 buffers back from 100 to 320 while it idles."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 100, launched=(-20, -15))
    r.op("DistributedDataParallel.forward", 100, 400)
    r.op("aten::flatten_dense_tensors", 100, 110)
    if sent:
        r.op("c10d::broadcast_", 110, 120)
        r.kernel(kernel, 122, 123, stream=20, launched=(112, 115))
    for n in range(20):
        at = 120 + 10 * n
        r.op("aten::copy_", at, at + 9)
        r.copy("Memcpy DtoD (Device -> Device)", at + 8, at + 9, launched=(at + 2, at + 6))
    r.op("aten::linear", 330, 345)
    r.kernel("gemm", 345, 1000, launched=(333, 338))
    return r


@pytest.mark.parametrize("kernel", [BROADCAST, "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"])
def test_copies_of_small_buffers_cost_the_host_more_than_the_transfer(recording, kernel):
    r = many_buffers(recording, kernel=kernel)
    finding = r.find("buffer-broadcast")
    assert finding.lost_ns == 1_000 + 198_000  # the broadcast, and what the device idles while the host is at it
    assert finding.evidence[1] == "The host takes 0.22 ms per step to send buffers and to copy them back."
    (p,) = r.prescribe("buffer-broadcast")
    assert p.saves_ns == (pytest.approx(0.7 * 199_000), 199_000)


def test_copies_in_a_forward_that_sends_nothing_are_the_model_s_own(recording):
    assert many_buffers(recording, sent=False).find("buffer-broadcast") is None


def on_the_host(recording, *, op="DistributedDataParallel.forward"):
    """Return a step of 1000 µs whose forward sends buffers from 20 to 320."""
    r = recording(devices=())
    for step in range(2):
        begin = 1000 * step
        r.step(step + 1, begin, begin + 1000)
        r.op(op, begin + 10, begin + 700)
        r.op("aten::cat", begin + 20, begin + 40)
        r.op("c10d::broadcast_", begin + 40, begin + 60)
        r.annotation("gloo:broadcast", begin + 50, begin + 300, thread="gloo")
        r.op("aten::copy_", begin + 310, begin + 320)
        r.op("aten::mm", begin + 330, begin + 700)
    return r


def test_without_a_device_the_sending_and_the_copies_around_it_count(recording):
    finding = on_the_host(recording).find("buffer-broadcast")
    assert finding.lost_ns == pytest.approx(300_000)
    assert on_the_host(recording, op="Model.forward").find("buffer-broadcast") is None


@pytest.mark.parametrize(("content", "is_constant"), [("same", True), ("", False)])
def test_buffers_that_no_step_changes_are_named(recording, content, is_constant):
    t = Table()
    for t.step in range(2):
        t.value(500, 1000, role="buffer", name="module.table", content=content)
        t.value(2, role="buffer", name="module.grid", content="constant")
    r = on_the_host(recording)
    capture = replace(r.capture(), dataflow=t.graph().flow)
    (finding,) = analyzer("buffer-broadcast").find(build_tables(capture, capture.trace))
    text = "No step changes the buffers table, grid (2.0 MB): every rank holds them already."
    assert (text in finding.evidence) == is_constant
