"""buffer-broadcast: broadcasts that DistributedDataParallel's forward launches."""

import pytest

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
