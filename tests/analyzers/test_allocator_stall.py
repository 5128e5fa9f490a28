"""allocator-stall: driver allocations that fill at least 30 % of a gap."""

import pytest


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "cuMemCreate", "cuMemMap", "cudaHostAlloc", "hipMalloc"])
def test_calls_that_take_or_give_back_memory(late, name):
    late.runtime(name, 300, 500)
    late.op("aten::empty", 500, 690)
    assert late.booked() == {"allocator-stall": 200_000, "launch-bound": 200_000}
    finding = late.find("allocator-stall")
    assert finding.lost_ns == 200_000
    assert f"{name}: 1 call, 200 µs of the idle time." in finding.evidence


@pytest.mark.parametrize(("until", "booked"), [(419, 0), (420, 120_000)])
def test_a_call_must_fill_three_tenths_of_the_gap(late, until, booked):
    late.runtime("cudaMalloc", 300, until)
    late.op("aten::empty", until, 690)
    assert late.booked().get("allocator-stall", 0) == booked
    assert sum(late.booked().values()) == 400_000


@pytest.mark.parametrize("name", ["cudaEventRecord", "cudaPointerGetAttributes", "cudaEventQuery"])
def test_other_calls_are_none_of_its_business(late, name):
    late.runtime(name, 300, 690)
    assert late.booked() == {"launch-bound": 400_000}


def test_growing_segments_are_prescribed(late):
    late.runtime("cudaMalloc", 300, 500)
    (p,) = late.prescribe("allocator-stall")
    assert p.id == "expandable-segments"
    assert "expandable_segments:True" in p.after
    assert "empty_cache" in p.before
    assert p.saves_ns == (0, 200_000)
    assert p.predicted_step_ns == 900_000


def test_an_allocation_does_not_delay_what_is_queued_already(queued):
    r = queued()
    r.runtime("cudaMalloc", 300, 700)
    assert r.booked() == {"unexplained-device": 400_000}


@pytest.mark.parametrize(
    ("each", "title", "extent"),
    [
        ((200, 200, 200), "in each of 3 steps", "3 steps: 200 µs of each step"),
        ((570, 0, 30), "in 1 of 3 steps", "1 of 3 steps: 570 µs each, 190 µs of the mean step"),
        ((300, 300, 0), "in 2 of 3 steps", "2 of 3 steps: 300 µs each, 200 µs of the mean step"),
        ((300,), "in the recorded step", "1 step: 300 µs of each step"),
    ],
)
def test_its_title_counts_the_steps_that_have_half_of_the_mean(recording, each, title, extent):
    r = recording()
    for i, length in enumerate(each):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.kernel("gemm", at, at + 300, launched=(at - 20, at - 15))
        r.kernel("gemm", at + 900, at + 1000, launched=(at + 885, at + 890))
        if length:
            r.runtime("cudaMalloc", at + 300, at + 300 + length)
        r.op("aten::empty", at + 300 + length, at + 885)
    finding = r.find("allocator-stall")
    assert finding.title == f"The allocator requests memory from the driver {title}"
    assert extent in finding.evidence[0]
