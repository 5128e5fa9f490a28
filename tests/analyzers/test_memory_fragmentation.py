"""memory-fragmentation: much is reserved, a third of it never allocated."""

import pytest

from diagnose.model.events import Device

GB = 10**9


def holding(recording, reserved, allocated):
    r = recording(devices=[Device(0, "NVIDIA A100", 10 * GB, 108, (8, 0))])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.memory(100, int(allocated * GB), 1, int(allocated * GB), reserved=int(reserved * GB))
    r.memory(200, -int(allocated * GB), 1, 0, reserved=int(reserved * GB))
    return r


def test_four_of_nine_gigabytes_are_never_used(recording):
    r = holding(recording, 9, 5)
    assert r.find("memory-fragmentation").title == "4.0 GB of memory are reserved and never used in these steps"
    assert [p.id for p in r.prescribe("memory-fragmentation")] == ["expandable-segments"]


@pytest.mark.parametrize(("reserved", "allocated"), [(5.9, 1), (9, 6.1)])
def test_what_does_no_harm(recording, reserved, allocated):
    assert holding(recording, reserved, allocated).find("memory-fragmentation") is None


def test_a_capture_knows_how_the_free_memory_lies(recording):
    r = holding(recording, 9, 5)
    r.with_info(memory={"segments": 12, "free_pieces_bytes": 4 * GB, "largest_free_piece_bytes": GB // 2})
    finding = r.find("memory-fragmentation")
    assert finding.evidence[-1] == (
        "After the steps 4.00 GB are free inside 12 segments; the largest free piece has 0.50 GB."
    )
