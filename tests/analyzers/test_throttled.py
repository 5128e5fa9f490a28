"""throttled: NVML names a limit, and the clock is lower than the board allows."""

import pytest


def clocked(recording, *, mhz=1400, reason=0x04, rows=10, slowed=5, use=100, **watts):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    reasons = [reason] * slowed + [0] * (rows - slowed)
    series = {
        "sm_mhz": [mhz] * slowed + [2000] * (rows - slowed),
        "throttle_reasons": reasons,
        "utilisation": [use] * rows,
    }
    r.with_info(nvml={"gpus": [{"name": "H100", "max_sm_mhz": 2000, **series, **watts}]})
    return r


def test_half_of_the_time_at_seven_tenths_of_the_clock(recording):
    r = clocked(recording)
    finding = r.find("throttled")
    assert finding.title == "The device runs at 70 % of its clock"
    assert finding.lost_ns == pytest.approx(1_000_000 * 0.5 * 0.3)
    assert finding.evidence == ("H100: 1400 MHz of 2000 MHz, held back by the power limit in 50 % of the readings.",)
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
    r.with_info(nvml={"gpus": [{"name": "H100", "max_sm_mhz": None, "sm_mhz": [None], "throttle_reasons": [None]}]})
    assert r.find("throttled") is None


@pytest.mark.parametrize(
    ("limit", "reason", "ids"), [(700, 0x04, []), (500, 0x04, ["lift-the-limit"]), (700, 0x24, ["lift-the-limit"])]
)
def test_a_board_at_its_highest_limit_needs_no_advice(recording, limit, reason, ids):
    r = clocked(recording, reason=reason, power_limit_w=limit, max_power_limit_w=700)
    finding = r.find("throttled")
    assert (finding.lost_ns == 0) == (ids == [])
    assert finding.evidence[0].endswith("is the highest that it can be set to.") == (ids == [])
    assert [p.id for p in r.prescribe("throttled")] == ids
