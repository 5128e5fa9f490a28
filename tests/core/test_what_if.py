"""What the step would take if: questions to the replay, through the function behind `diagnose what-if`."""

import pytest

from diagnose import what_if
from diagnose.errors import InputError, UsageError
from diagnose.what_if import Asked, ask, parse_scale


@pytest.fixture
def asked(recording, monkeypatch):
    """A step of 1400 µs: gemm to 300, Python to 690, relu from 700 to 1400; the host is done at 800."""
    r = recording()
    r.step(1, 0, 800)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::relu", 690, 700)
    r.kernel("relu", 700, 1400, launched=(691, 695))
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    return lambda **changes: ask("trace.json", Asked(**changes))


def test_without_a_change_the_step_is_the_measured_one(asked):
    answer = asked()
    assert (answer.now_ns, answer.then_ns) == (1_400_000, pytest.approx(1_400_000))
    assert sum(share for _, share in answer.path) == pytest.approx(1)


def test_a_kernel_at_the_end_gives_back_what_it_loses(asked):
    assert asked(scale=(("relu", 0.5),)).then_ns == pytest.approx(1_050_000)


def test_a_kernel_that_ends_while_the_host_is_late_gives_nothing_back(asked):
    assert asked(scale=(("gemm", 0.5),)).then_ns == pytest.approx(1_400_000)


def test_without_the_stall_the_step_is_shorter(asked):
    answer = asked(without=("python-stall",))
    assert 1_000_000 <= answer.then_ns <= 1_020_000
    assert "shorter" in answer.text()


def test_changes_are_replayed_together(asked):
    both = asked(without=("python-stall",), scale=(("relu", 0.5),)).then_ns
    assert both < min(asked(without=("python-stall",)).then_ns, asked(scale=(("relu", 0.5),)).then_ns)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without": ("no-such-rule",)}, "is no rule of idle time"),
        ({"without": ("gc-pause",)}, "takes no time in this trace"),
        ({"scale": (("conv", 0.5),)}, "No kernel"),
    ],
)
def test_what_cannot_be_asked(asked, changes, words):
    with pytest.raises(UsageError, match=words):
        asked(**changes)


def test_several_ranks_are_refused(late, monkeypatch):
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [late.capture(), late.capture()])
    with pytest.raises(InputError, match="2 ranks"):
        ask("folder", Asked())


def test_without_a_device_there_is_nothing_to_replay(recording, monkeypatch):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    with pytest.raises(InputError, match="no device work"):
        ask("trace.json", Asked())


@pytest.mark.parametrize("text", ["gemm", "=0.5", "gemm=fast", "gemm=-1", "(=1", "gemm=inf", "gemm=nan"])
def test_a_scale_that_is_none(text):
    with pytest.raises(UsageError, match="PATTERN=FACTOR"):
        parse_scale(text)


def test_a_pattern_may_hold_an_equals_sign():
    assert parse_scale("a=b=0.5") == ("a=b", 0.5)
