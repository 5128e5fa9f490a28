"""The checks of test_recorded_reports.py notice numbers that differ in one form, and a diagnosis that is off."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from tests.pipeline import rendered
from tests.pipeline import test_recorded_reports as reports

OTHER_DIGITS = str.maketrans("0123456789", "1234567890")


def other_numbers(value):
    """Return JSON with other numbers."""
    if isinstance(value, dict):
        return {key: other_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [other_numbers(each) for each in value]
    return value + 0.5 if isinstance(value, float) else value


def with_other_numbers(forms, name):
    """Return the three forms with other numbers in one of them."""
    if name == "json":
        return forms._replace(json=other_numbers(forms.json))
    if name == "page":
        return forms._replace(page=forms.page.translate(OTHER_DIGITS).replace("<h2", "<h1").replace("</h2", "</h1"))
    return forms._replace(text=forms.text.translate(OTHER_DIGITS), words=forms.words.translate(OTHER_DIGITS))


@pytest.fixture(scope="module")
def d(recorded):
    """Return a diagnosis of a recorded trace that has a queue, a dominant finding and a waterfall."""
    diagnoses = (recorded.diagnoses[name] for name in recorded.of("small", second=True))
    fitting = (d for d in diagnoses if d.source.found_steps_by != "none" and d.verdict != "kernel-bound")
    fitting = (d for d in fitting if d.queue and d.waterfall and d.picture and d.dominant and len(d.findings) > 1)
    return next(d for d in fitting if answer(d).shows_savings)


@pytest.mark.parametrize(
    ("check", "form"),
    [
        *[(check, form) for check in ("queue", "partition", "waterfall") for form in ("text", "json", "page")],
        *[("text", "text"), ("as_json", "json"), ("as_page", "page")],
    ],
)
def test_a_number_that_differs_in_one_form_is_noticed(d, check, form, monkeypatch):
    other = replace(d)
    check = getattr(reports, check)
    check(other)
    monkeypatch.setitem(rendered.MADE, id(other), (other, with_other_numbers(rendered.forms(d), form)))
    with pytest.raises(AssertionError):
        check(other)


def longer_chain(d):
    first, *others = d.waterfall.forecasts
    return d.waterfall._replace(forecasts=(first._replace(step_ns=first.step_ns * 1.1), *others))


OFF = {
    "shares": lambda d: {"idle_by_cause": {cause: 2 * share for cause, share in d.idle_by_cause.items()}},
    "savings": lambda d: {"waterfall": longer_chain(d)},
    "additions": lambda d: {"prescriptions": tuple(replace(p, records_again=True) for p in d.prescriptions)},
    "places": lambda d: {"findings": tuple(replace(f, lost_ns=2 * d.step_ns) for f in d.findings)},
    "order": lambda d: {"findings": d.findings[::-1]},
    "sentences": lambda d: {"findings": (replace(d.findings[0], worth_ns=d.findings[0].worth_ns / 2), *d.findings[1:])},
}


@pytest.mark.parametrize("name", OFF)
def test_a_diagnosis_that_does_not_agree_with_itself_is_noticed(d, name):
    check = getattr(reports, name)
    check(d)
    with pytest.raises(AssertionError):
        check(replace(d, **OFF[name](d)))


def test_every_check_is_tried(d):
    assert d.headline
    tried = {"queue", "partition", "waterfall", "text", "lines", "as_json", "as_page", *OFF}
    assert {check.__name__ for check in reports.CHECKS} == tried
