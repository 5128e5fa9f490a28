"""Where the last step of a recording ends. Times in µs."""

import pytest


def steps(r):
    return r.tables().steps


def closing(recording, rests, *, empty=False):
    """Return steps whose operators end as many µs before their marks do."""
    r = recording()
    at = 0
    for i, rest in enumerate(rests):
        r.step(i + 1, at, at + 1000 + rest)
        if not (empty and i == 0):
            r.op("aten::linear", at, at + 1000)
        r.kernel("gemm", at + 10, at + 990, launched=(at, at + 5))
        at += 1000 + rest
    return r


@pytest.mark.parametrize(
    ("rests", "last"), [((20, 30, 500), 30), ((20, 500, 400), 400), ((20, 20, 10), 10), ((20, 500), 500)]
)
def test_the_last_step_has_no_longer_rest_than_any_other(recording, rests, last):
    """After its last event workers are shut down and the profiler stops, while its mark is open."""
    t = closing(recording, rests).tables()
    assert (t.steps.end - t.steps.start)[-1] == 1000 * (1000 + last)


def test_where_a_step_has_no_events_the_last_one_keeps_its_rest(recording):
    r = recording()
    for i, length in enumerate((1000, 1200, 5000)):
        r.step(i, 1000 * i, 1000 * i + length)
    r.kernel("gemm", 0, 900, launched=(-20, -15))
    assert steps(r).end[-1] == 7_000_000


def test_marks_of_a_capture_end_where_their_steps_do(recording):
    r = closing(recording, (20, 30, 500))
    r.with_info(light_ms=(1.02, 1.03, 1.5))
    assert (steps(r).end - steps(r).start)[-1] == 1_500_000
