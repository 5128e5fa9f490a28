"""throttled: NVML names a limit, and the clock is lower than the board allows."""

import pytest


def clocked(recording, *, mhz=1400, reason=0x04, rows=10, slowed=5, use=100):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    reasons = [reason] * slowed + [0] * (rows - slowed)
    series = {
        "sm_mhz": [mhz] * slowed + [2000] * (rows - slowed),
        "throttle_reasons": reasons,
        "utilisation": [use] * rows,
    }
    r.told(nvml={"gpus": [{"name": "H100", "max_sm_mhz": 2000, **series}]})
    return r


def test_half_of_the_time_at_seven_tenths_of_the_clock(recording):
    r = clocked(recording)
    finding = r.find("throttled")
    assert finding.title == "The device runs at 70% of its clock"
    assert finding.lost_ns == pytest.approx(1_000_000 * 0.5 * 0.3)
    assert finding.evidence == ("H100: 1400 MHz of 2000 MHz, held back by the power limit in 50% of the readings.",)
    assert [p.id for p in r.prescribe("throttled")] == ["lift-the-limit"]


@pytest.mark.parametrize(
    "change",
    [
        {"mhz": 1900},  # less than a tenth lower
        {"slowed": 1},  # in a tenth of the readings
        {"reason": 0x01},  # idle
        {"reason": 0x02},  # clocks that an application asked for
        {"use": 0},
        {"rows": 0, "slowed": 0},
    ],
)
def test_what_is_no_throttling(recording, change):
    assert clocked(recording, **change).find("throttled") is None


def test_boards_that_tell_nothing(recording):
    r = clocked(recording)
    r.told(nvml={"gpus": [{"name": "H100", "max_sm_mhz": None, "sm_mhz": [None], "throttle_reasons": [None]}]})
    assert r.find("throttled") is None
