"""Limits that never decide: each comparison is made with the limit and without it."""

import math

import numpy as np
from binding import Log, Watched


def test_a_comparison_that_comes_out_otherwise_without_the_limit_is_counted():
    log = Log()
    least, most = Watched(3, 0.0, "least", log), Watched(2.0, math.inf, "most", log)
    assert [least <= 5, least <= 1.5, least * 2 > 2, least + 1 > 9] == [True, False, True, False]
    assert (np.array([1.0, 2.0, 3.0]) < most).tolist() == [True, False, False]
    assert log.compared == {"least": 4, "most": 3}
    assert log.decided == {"least": 2, "most": 2}


def test_what_follows_from_a_limit_carries_it():
    log = Log()
    shares = np.array([0.25, 0.5])
    assert (shares.sum() <= Watched(0.5, math.inf, "most", log) * 2 - 0.1).tolist() is True
    assert log.decided["most"] == 0


def test_a_limit_in_a_slice_is_lost():
    log = Log()
    assert [1, 2, 3][: Watched(2, math.inf, "most", log)] == [1, 2]
    assert log.lost == {"most"}
