"""shared-device: NVML lists other processes."""


def test_another_process(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.with_info(nvml={"gpus": [{"other_processes": [{"pid": 77, "memory_bytes": 3_000_000_000}]}]})
    finding = r.find("shared-device")
    assert finding.evidence == ("Process 77 was seen on it, with 3.0 GB of its memory.",)
    assert finding.lost_ns == 0
    assert r.prescribe("shared-device") == []  # it loses no time, so a device of its own saves none


def test_nobody_else(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    assert r.find("shared-device") is None
    r.with_info(nvml={"gpus": [{"other_processes": []}]})
    assert r.find("shared-device") is None
