"""profiler-overhead: idle that the profiler's own records cover by more than 30 %."""

import pytest


def test_what_the_profiler_covers_is_booked_and_no_more(late):
    late.overhead("Activity Buffer Request", 350, 550)
    assert late.booked() == {"profiler-overhead": 200_000, "python-stall": 190_000, "launch-bound": 10_000}
    finding = late.find("profiler-overhead")
    assert finding.lost_ns == 200_000
    assert (finding.count, finding.total_ns, finding.median_ns) == (1, 200_000, 200_000)
    assert finding.evidence[0] == "1 idle gap in 1 step: 200 µs of each step (20.0 %)."
    example = finding.examples[0]
    assert (example.step, example.start_ns, example.lost_ns) == (1, 350_000, 200_000)
    assert (example.before, example.after) == ("gemm", "relu")


@pytest.mark.parametrize(("until", "booked"), [(420, 0), (421, 121_000)])
def test_a_record_must_cover_more_than_three_tenths_of_the_gap(late, until, booked):
    late.overhead("Buffer Flush", 300, until)  # of 400
    assert late.booked().get("profiler-overhead", 0) == booked


def test_records_of_any_thread_count_as_the_profiler_holds_a_lock(late):
    late.overhead("Buffer Flush", 300, 700, thread="profiler")
    assert late.booked() == {"profiler-overhead": 400_000}


def test_it_comes_before_what_the_thread_did_meanwhile(late):
    late.overhead("Buffer Flush", 300, 700)
    late.gc(300, 500)
    late.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 500, 690)
    assert late.booked() == {"profiler-overhead": 400_000}


def test_nothing_is_prescribed_because_the_script_does_not_cause_it(late):
    late.overhead("Buffer Flush", 300, 700)
    assert late.prescribe("profiler-overhead") == []
