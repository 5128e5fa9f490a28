"""Gaps before work that the driver keeps until the host waits. Times in µs."""

import pytest

from diagnose.tables.syncs import batched_gaps


def gathering(recording, *, num=4, waits_at=110, begins=200):
    """Return steps of 400: a kernel is launched at 5, the host waits from 110 on, and the device begins at 200."""
    r = recording()
    for i in range(num):
        at = 400 * i
        r.step(i + 1, at, at + 400)
        r.kernel("gemm", at + begins, at + 395, launched=(at + 5, at + 9))
        r.runtime("cudaStreamSynchronize", at + waits_at, at + 398)
    return r


def test_work_that_begins_only_as_the_host_waits_is_the_price_of_the_wait(recording):
    r = gathering(recording)
    assert batched_gaps(r.tables()).tolist() == [True] * 3 + [False]  # the last ends the recording
    # 205 µs from the end of a kernel to the begin of the next one, three times, and 5 at the end
    assert r.booked()["host-sync"] == 620_000
    finding = r.find("host-sync")
    assert finding.evidence[1].endswith(
        "work that was launched before begins only as the host waits in these: cudaStreamSynchronize (4×). "
        "The driver hands launches over in batches."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"num": 2},  # may be chance
        {"begins": 15},  # the usual latency
        {"waits_at": 220},  # it began before
    ],
)
def test_what_is_no_such_price(recording, change):
    assert not batched_gaps(gathering(recording, **change).tables()).any()
