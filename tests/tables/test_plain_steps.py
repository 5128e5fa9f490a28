"""Steps without the profiler before and after the recorded ones. Times in ms; steps on either side of ten recorded."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.model.words import english
from diagnose.reports.json_reading import from_json
from diagnose.reports.text import render

STATE = [0] * 14 + [3] + [1] * 10 + [3] + [0] * 30


@pytest.fixture
def ran(recording, run_steps):
    """Give a CPU-only diagnosis of ten recorded steps in a run of others."""

    def make(before, recorded, after, *, last=None, per_ms=0):
        r = recording(devices=())
        each = [recorded] * 9 + [last or recorded]
        now = 0.0
        for number, ms in enumerate(each):
            r.step(number + 1, now, now + 1000 * ms)
            r.op("aten::mm", now, now + 1000 * ms)
            now += 1000 * ms
        took = [*spread(before, 14), 2 * recorded, *each, 2 * recorded, *spread(after, 30)]
        work = {"work": [per_ms * ms for ms in took]} if per_ms else {}
        r.run = run_steps(took, state=STATE, backwards=[1] * len(STATE), **work)
        r.with_info(light_ms=tuple(each), unprofiled_ms=tuple(spread(before, 10)), settled_after=2)
        return r.diagnosis()

    return make


def spread(ms, num):
    """Return steps around ``ms`` whose quartiles lie 4 % apart."""
    return [ms * (1 + 0.02 * (i % 3 - 1)) for i in range(num)]


def cautions(d):
    return [english(caution) for caution in answer(d).cautions]


def noted(d):
    """Return the notes about what recording costs."""
    return [note.text for note in d.trust if note.rule == "profiler-overhead"]


def step_ms(d):
    return d.step_ns / 1e6


def test_of_steps_that_are_alike_the_recording_costs_nothing(ran):
    """Twelve steps of 10 and thirty of 10.2 ms ran without the profiler."""
    d = ran(10.0, 10.0, 10.2)
    assert d.plain_steps.agree
    assert step_ms(d) == pytest.approx((12 * 10 + 30 * 10.2) / 42)
    assert (cautions(d), noted(d)) == ([], [])


def test_slow_steps_before_the_recording_do_not_show_what_it_costs(ran):
    """Something else slowed the script down until after the recording: no step of it is the usual one."""
    d = ran(16.0, 16.0, 10.0)
    assert step_ms(d) == pytest.approx((12 * 16 + 30 * 10) / 42)
    assert cautions(d) == [
        "Unstable timing: steps took 10.0 ms to 16.0 ms within this run. Record again on an idle machine."
    ]
    assert cautions(d)[0] in " ".join(render(d).split())


def test_a_report_that_is_read_back_has_the_same_sentence(ran):
    d = ran(16.0, 16.0, 10.0)
    read = from_json(d.to_json(), source="a report")
    assert read.plain_steps.agree is False
    assert cautions(read) == cautions(d)


def test_a_script_that_became_faster_before_it_was_recorded_is_compared_with_the_steps_behind(ran):
    d = ran(12.0, 10.8, 10.0)
    assert d.plain_steps.agree
    assert cautions(d) == []
    assert step_ms(d) == pytest.approx(10)  # of those behind: nothing recorded shows what slowed the others


def test_steps_that_became_slower_are_not_the_recording_s(ran):
    d = ran(10.0, 16.0, 16.0)
    assert step_ms(d) == pytest.approx((12 * 10 + 30 * 16) / 42)
    assert cautions(d) == [
        "Unstable timing: steps took 10.0 ms to 16.0 ms within this run. Record again on an idle machine."
    ]


def test_where_the_steps_around_the_recorded_ones_differ_those_that_were_disturbed_lengthen_no_saving(ran):
    """Whether other programs ran before or after."""
    for before, after in ((10.0, 36.0), (36.0, 10.0), (36.0, 14.0)):
        d = ran(before, 10.0, after)
        assert step_ms(d) == pytest.approx(10.0 if 10.0 in (before, after) else 14.0, rel=0.01)
    assert "within this run" in cautions(ran(10.0, 10.0, 36.0))[0]


def test_recorded_steps_that_are_shorter_than_all_others(ran):
    d = ran(16.0, 10.0, 16.0)
    assert not d.plain_steps.agree
    assert (step_ms(d), d.profiler_overhead) == (pytest.approx(16), pytest.approx(-0.375))
    assert cautions(d)[0].startswith("Unstable timing: steps took 10.0 ms to 16.0 ms within this run.")


def test_steps_of_unequal_work_are_compared_by_their_work(ran):
    d = ran(20.0, 10.0, 10.0, per_ms=100)
    assert d.plain_steps.agree
    assert step_ms(d) == pytest.approx((12 * 20 + 30 * 10) / 42)
    assert cautions(d) == []


def test_what_recorded_steps_take_longer_than_all_others_is_the_recording_s(ran):
    d = ran(10.0, 10.8, 10.0)
    assert d.plain_steps.agree
    assert (step_ms(d), d.profiler_overhead) == (pytest.approx(10), pytest.approx(0.08))
    assert noted(d) == [
        "Recorded steps took 10.8 ms, 8.0 % longer than steps without the profiler. All times are of a step without "
        "it, 10.0 ms."
    ]


def test_a_long_step_among_few_makes_no_usual_mean(ran):
    """The medians are alike; one recorded step of ten takes 150 ms, and none of the 42 others."""
    d = ran(10.0, 10.0, 10.0, last=150.0)
    assert (d.plain_steps.agree, d.recorded_step_ns, step_ms(d)) == (True, 24e6, pytest.approx(10))


def test_of_the_device_s_steps_those_after_the_recording_do_not_count(late, run_steps):
    """Its profiler stays attached, and launches take longer then."""
    took = [*spread(1.0, 14), 2.0, *[1.0] * 10, 2.0, *spread(1.6, 30)]
    late.run = run_steps(took, state=STATE)
    late.with_info(light_ms=(1.0,) * 10, unprofiled_ms=tuple(spread(1.0, 10)))
    assert late.diagnosis().plain_steps is None  # the host's times, which may run ahead
    late.run = replace(late.run, device_ns=late.run.took_ns)
    beside = late.diagnosis().plain_steps
    assert (beside.after_ns, beside.agree, beside.mean_ns) == (None, True, None)


def busy_later(ms):
    """Return thirty steps of which most take twice to three times as long, as beside a program that started later."""
    return [ms * (1, 2, 3, 2.5, 1, 2.2)[i % 6] for i in range(30)]


def test_steps_that_vary_later_are_nothing_to_recorded_ones_that_do_not(varied):
    d = varied(10.0, 11.0)
    assert (d.plain_steps.agree, cautions(d)) == (True, [])
    assert step_ms(d) == pytest.approx((12 * 10 + 30 * 19.5) / 42)  # the mean of 10, 20, 30, 25, 10 and 22 is 19.5


def test_that_steps_vary_without_the_profiler_is_noted(varied):
    d = varied(10.0, 15.0, before=[8.0, 16.0] * 7)
    assert step_ms(d) == pytest.approx((12 * 12 + 30 * 19.5) / 42)
    assert "Step times vary without the profiler too: a tenth are below 8.0 ms, a tenth above 29.5 ms." in [
        note.text for note in d.trust
    ]


@pytest.fixture
def varied(recording, run_steps):
    """Give a CPU-only diagnosis of ten recorded steps before others that vary."""

    def make(plain, recorded, *, before=None):
        r = recording(devices=())
        for number in range(10):
            r.step(number + 1, 1000 * recorded * number, 1000 * recorded * (number + 1))
            r.op("aten::mm", 1000 * recorded * number, 1000 * recorded * (number + 1))
        before = before or spread(plain, 14)
        took = [*before, 2 * recorded, *[recorded] * 10, 2 * recorded, *busy_later(plain)]
        r.run = run_steps(took, state=STATE, backwards=[1] * len(STATE))
        r.with_info(light_ms=(recorded,) * 10, unprofiled_ms=tuple(before[-10:]), settled_after=2)
        return r.diagnosis()

    return make
