"""dropout-draws: masks that a CPU draws number by number. Times in µs."""

import pytest


def dropping(recording, *, took=200.0, num=2, around="", devices=()):
    """Return two steps of 1000 µs, in each of which so many dropouts draw their masks for so long."""
    r = recording(devices=devices)
    for step in range(2):
        at = 1000.0 * step
        r.step(step + 1, at, at + 1000)
        for i in range(num):
            begin = at + 300 * i
            if around:
                r.op(around, begin, begin + took + 60)
            r.op("aten::dropout", begin + 10, begin + took + 50)
            r.op("aten::bernoulli_", begin + 20, begin + 20 + took)
            r.op("aten::mul", begin + 25 + took, begin + 45 + took)
        r.op("aten::mm", at + 900, at + 1000)
    return r


def test_four_fifths_of_the_draws_are_lost(recording, presentable):
    r = dropping(recording)
    finding = r.find("dropout-draws")
    assert finding.lost_ns == pytest.approx(320_000)
    assert finding.evidence[-1] == "A step draws 2 masks of dropout, in 400 µs."
    (p,) = r.prescribe("dropout-draws")
    presentable(p)
    assert (p.id, p.saves_ns) == ("fast-dropout", (pytest.approx(224_000), pytest.approx(352_000)))
    assert r.booked()["dropout-draws"] == 640_000


@pytest.mark.parametrize(
    ("took", "num", "around"),
    [
        (30, 2, ""),  # a mask of few numbers
        (60, 1, ""),  # of which four fifths are 4.8 % of the step
        (200, 2, "aten::lstm"),  # no Python draws it
    ],
)
def test_what_is_none_of_it(recording, took, num, around):
    assert dropping(recording, took=took, num=num, around=around).find("dropout-draws") is None


def test_those_of_an_attention_count(recording):
    finding = dropping(recording, around="aten::scaled_dot_product_attention").find("dropout-draws")
    assert finding.lost_ns == pytest.approx(320_000)


def test_draws_that_are_no_dropout_s_are_none(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::bernoulli_", 0, 500)
    r.op("aten::dropout", 500, 900)
    assert r.find("dropout-draws") is None
