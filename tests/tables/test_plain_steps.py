"""Steps without the profiler before and after the recorded ones. Times in ms; steps on either side of ten recorded."""

import re
from dataclasses import replace

import pytest
from diagnose.reports.answer import answer
from diagnose.reports.beside_recording import recording_words

from diagnose.reports import html
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


def test_of_steps_that_are_alike_the_recording_costs_nothing(ran):
    d = ran(10.0, 10.0, 10.2)
    assert d.plain_steps.agree
    assert (recording_words(d), answer(d).cautions) == ("recording cost nothing measurable", ())


def test_slow_steps_before_the_recording_do_not_show_what_it_costs(ran):
    """Something else slowed the script down until after the recording: no step of it is the usual one."""
    d = ran(16.0, 16.0, 10.0)
    assert (d.profiler_overhead, recording_words(d)) == (None, "")
    assert "recording made the steps" not in render(d)
    assert answer(d).cautions == (
        "Steps without the profiler took 16.0 ms right before and 10.0 ms right after the recorded ones, which took "
        "16.0 ms: the script or the machine changed meanwhile, so the reported step may not be the usual one. Record "
        "again.",
        "The step of 16.0 ms is the mean of 10 recorded steps, the run's mean step is 11.4 ms: long steps are a larger "
        "part of the recorded ones.",
    )
    assert re.search("^  step now +16.0 ms  █+  run's mean 11.4 ms$", render(d), re.MULTILINE)
    assert "run's mean 11.4 ms" in html.render(d)
    assert answer(d).cautions[0] in " ".join(render(d).split())


def test_a_report_that_is_read_back_has_the_same_sentence(ran):
    d = ran(16.0, 16.0, 10.0)
    read = from_json(d.to_json(), source="a report")
    assert read.plain_steps.agree is False
    assert answer(read).cautions == answer(d).cautions


def test_a_script_that_became_faster_before_it_was_recorded_is_compared_with_the_steps_behind(ran):
    d = ran(12.0, 10.8, 10.0)
    assert d.plain_steps.agree
    assert answer(d).cautions == ()
    assert recording_words(d) == "recording made the steps 8.0 % longer"


def test_steps_that_became_slower_are_not_the_recording_s(ran):
    d = ran(10.0, 16.0, 16.0)
    assert (d.step_ns, d.recording_removed) == (16e6, 0.0)
    assert "10.0 ms right before and 16.0 ms right after" in answer(d).cautions[0]
    assert not any("Recording made" in note.text for note in d.trust)


def test_recorded_steps_that_are_shorter_than_all_others(ran):
    d = ran(16.0, 10.0, 16.0)
    assert not d.plain_steps.agree
    assert recording_words(d) == ""


def test_steps_of_unequal_work_are_compared_by_their_work(ran):
    d = ran(20.0, 10.0, 10.0, per_ms=100)
    assert d.plain_steps.agree
    assert d.profiler_overhead == pytest.approx(0.0, abs=0.01)


def test_what_recorded_steps_take_longer_than_all_others_is_the_recording_s(ran):
    d = ran(10.0, 10.8, 10.0)
    assert d.plain_steps.agree
    assert recording_words(d) == "recording made the steps 8.0 % longer"


def test_a_long_step_among_few_makes_no_usual_mean(ran):
    """The medians are alike; one recorded step of ten takes 150 ms."""
    d = ran(10.0, 10.0, 10.0, last=150.0)
    assert (d.plain_steps.agree, d.step_ns, recording_words(d)) == (True, 24e6, "")
    assert answer(d).cautions == (
        "The step of 24.0 ms is the mean of 10 recorded steps, the run's mean step is 12.7 ms: long steps are a larger "
        "part of the recorded ones.",
    )


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
    assert d.profiler_overhead == pytest.approx(0.1)
    assert "so the recorded steps were compared with these" in vary_note(d)
    assert not any(text.startswith("Recorded steps take") for text in answer(d).cautions)


def test_recorded_steps_of_a_script_whose_steps_vary_are_stated_beside_the_others_on_top(varied):
    """Those before the recording vary as well: nothing shows what recording costs."""
    d = varied(10.0, 15.0, before=[8.0, 16.0] * 7)
    assert (d.profiler_overhead, d.recording_removed) == (None, 0.0)
    assert "how much longer the recording made them is not known" in vary_note(d)
    assert answer(d).cautions[0] == (
        "Recorded steps take 15.0 ms, unrecorded ones 12.0 ms at the median, and both vary: the times below are too "
        "long by up to 1.2 ×."
    )
    assert answer(d).cautions[0] in " ".join(render(d).split())


def vary_note(d):
    return next(note.text for note in d.trust if note.text.startswith("Steps vary"))


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
