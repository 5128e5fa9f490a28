"""How long steps are watched: three seconds of equal ones, longer where some take much longer than the others."""

import pytest

from diagnose.capture.record.plan import WatchedSteps

MS = 1_000_000


def watched_s(lengths_ms, state="plain", broken_ms=0):
    """Return how many seconds of steps are watched that recur in this order."""
    watched, took_ms = WatchedSteps(), 0
    if broken_ms:
        watched.add(broken_ms * MS, "edge", broken_off=True)
    while not watched.enough:
        for ms in lengths_ms:
            watched.add(ms * MS, state)
            took_ms += ms
            if watched.enough:
                break
    return took_ms / 1000


@pytest.mark.parametrize(
    ("lengths_ms", "seconds"),
    [
        ([10], 3.0),
        ([10] * 99 + [500], 4.5),  # the third of them comes after 4.47 s
        ([10] * 100 + [6000], 15.0),  # two have come by then
        ([10] * 200 + [30 * 5], 3.0),  # a pause of the machine now and then
        ([2000], 4.0),
    ],
)
def test_what_recurs_is_waited_for(lengths_ms, seconds):
    assert watched_s(lengths_ms) == pytest.approx(seconds, abs=0.5)


def test_recorded_steps_count_for_less():
    assert watched_s([10], state="light") == pytest.approx(5.0, abs=0.3)


def test_a_step_that_was_too_much_for_a_window_may_come_again():
    assert watched_s([10], broken_ms=2000) == pytest.approx(5.0, abs=0.3)
    assert watched_s([10], broken_ms=20) == pytest.approx(3.0, abs=0.3)


def test_steps_that_get_longer_are_watched_until_samples_show_at_which_place():
    watched, took_ms = WatchedSteps(), 0
    while not watched.enough:
        ms = 10 + took_ms // 200  # ten ms, and one more with each fifth of a second
        watched.add(ms * MS, "plain")
        took_ms += ms
    assert took_ms / 1000 == pytest.approx(8.0, abs=0.5)
