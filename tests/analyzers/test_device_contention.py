"""device-contention: queued work does not start, and another process was seen on the device."""

import pytest


def shared(r, *, others=({"pid": 4711, "name": "python"},)):
    r.with_info(nvml={"available": True, "gpus": [{"index": 0, "other_processes": list(others)}]})
    return r


def test_queued_work_beside_another_process(queued):
    r = shared(queued(300, 400))
    assert r.booked() == {"device-contention": 100_000}
    finding = r.find("device-contention")
    assert (finding.lost_ns, finding.confidence) == (100_000, "medium")
    assert finding.evidence[1] == "1 other process(es) were seen on the device while the steps ran."


@pytest.mark.parametrize(
    "nvml",
    [
        {},
        {"available": False, "reason": "no driver"},
        {"gpus": []},
        {"gpus": [{"other_processes": []}]},
    ],
)
def test_without_one_the_cause_stays_unknown(queued, nvml):
    r = queued(300, 400)
    r.with_info(nvml=nvml)
    assert r.booked() == {"unexplained-device": 100_000}


def test_short_pauses_are_latency_all_the_same(queued):
    assert shared(queued(300, 309)).booked() == {"kernel-latency": 9_000}


def test_a_late_launch_is_the_hosts_all_the_same(late):
    assert "device-contention" not in shared(late).booked()


def test_a_device_of_its_own_is_prescribed(queued):
    (p,) = shared(queued(300, 400)).prescribe("device-contention")
    assert p.id == "own-device"
    assert "CUDA_VISIBLE_DEVICES" in p.after
    assert p.saves_ns == (0.0, 100_000)
