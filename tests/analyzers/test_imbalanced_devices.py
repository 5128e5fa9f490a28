"""imbalanced-devices: one process, several devices, unequal work."""

import pytest


def driving(recording, first, second):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, first, launched=(-20, -15))
    if second:
        r.kernel("gemm", 0, second, device=1, launched=(-10, -5))
    return r


def test_nine_hundred_against_three_hundred(recording):
    r = driving(recording, 900, 300)
    finding = r.find("imbalanced-devices")
    assert finding.lost_ns == pytest.approx(300_000)  # 900 µs where 600 would do
    assert finding.evidence == ("Busy with kernels, ms a step: GPU 0 0.90, GPU 1 0.30.",)
    assert [p.id for p in r.prescribe("imbalanced-devices")] == ["one-process-a-device"]


@pytest.mark.parametrize(("first", "second"), [(900, 0), (900, 720), (90, 10)])
def test_even_enough(recording, first, second):
    assert driving(recording, first, second).find("imbalanced-devices") is None


def test_collectives_of_several_ranks_in_one_file_are_no_work_of_one_process(recording):
    """Four devices of which the file holds collectives only: nothing shows what they compute, or who drives them."""
    r = recording()
    r.step(1, 0, 1000)
    for device in range(4):
        r.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 100, 500 + 100 * device, device=device, stream=20)
    assert r.find("imbalanced-devices") is None
    assert r.find("exposed-communication") is None
    d = r.diagnosis()
    assert d.record_again == "Only collectives are in this recording: what the devices compute is missing"
    assert [f.title for f in d.findings if f.rule == "unexplained-host"] == [
        "The device is idle, and the file holds no launch that shows why"
    ]
