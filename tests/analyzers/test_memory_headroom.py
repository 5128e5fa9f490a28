"""memory-headroom: the host is the limit and a larger batch would fit."""

import pytest

from diagnose.model.events import Device

GB = 10**9


def launching(recording, *, reserved=2, late=True, capacity=10):
    """Return a step whose device idles from 300 to 700 µs, with 1 GB that grows with the batch at the peak."""
    r = recording(devices=[Device(0, "NVIDIA A100", capacity * GB, 108, (8, 0))])
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 690)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.kernel("relu", 700 if late else 300, 1000, launched=(690, 695) if late else (-10, -5))
    r.memory(100, GB, 1, 2 * GB, reserved=int(reserved * GB))
    r.memory(200, -GB, 1, GB, reserved=int(reserved * GB))
    return r


def test_room_for_eight_times_the_batch(recording):
    r = launching(recording)
    finding = r.find("memory-headroom")
    # 9 GB are usable, 2 reserved: 7 more than the 1 that grows with the batch
    assert finding.title == "Memory has room for a batch 8 times as large"
    assert [p.id for p in r.prescribe("memory-headroom")] == ["larger-batch"]


@pytest.mark.parametrize(("used", "title"), [(4, "Memory has room for a batch 6 times as large"), (5.1, None)])
def test_what_others_hold_is_not_offered(recording, used, title):
    r = launching(recording)
    r.with_info(nvml={"gpus": [{"index": 0, "time_ns": [r.epoch_ns], "memory_used_bytes": [int(used * GB)]}]})
    finding = r.find("memory-headroom")  # of 8 GB that the others leave nine tenths are usable: 5.2 more
    assert (finding.title if finding else None) == title
    if finding:
        assert finding.evidence[1].startswith("NVML shows 4.00 GB in use on the device, 2.00 GB in addition")


@pytest.mark.parametrize("change", [{"reserved": 5.1}, {"late": False}, {"capacity": 0}])
def test_where_a_larger_batch_is_no_advice(recording, change):
    assert launching(recording, **change).find("memory-headroom") is None
