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
