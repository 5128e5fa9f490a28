"""Whether a trial can make a change: its page, its prescription, the HTML report and ``diagnose prove`` agree."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from diagnose.changes import CHANGES, trial_method
from diagnose.cli.explain import change_page
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Forecast, Prescription, Waterfall
from diagnose.model.limits import HOW_TRIED
from diagnose.reports.html import render
from diagnose.trials.candidates import candidates, check_ids
from tests.reports.test_html import Page

MS = 1_000_000
every_change = pytest.mark.parametrize("name", list(CHANGES))


def prescribed(name):
    method = trial_method(name)
    return Prescription("data-stall", name, "Change it", "", "x", (0.0, 5 * MS), 15 * MS, "same", trial_method=method)


def report(forms, names):
    """Return the text of a page on which these changes are predicted and none was tried."""
    steps = tuple(Forecast(tuple(names[:i]), f"{i}", (20 - i) * MS, 10 * MS, 20 * MS) for i in range(len(names) + 1))
    given = tuple(map(prescribed, names))
    d = replace(forms["gaps"], prescriptions=given, trials=(), waterfall=Waterfall(steps, "the host", {}))
    return Page(render(d)).text


@every_change
def test_its_page_begins_as_the_report_does(name):
    page = change_page(name)
    assert page.trial.startswith(HOW_TRIED[trial_method(name)])
    assert ("prove" in page.trial) == (trial_method(name) != "by hand")


@every_change
def test_prove_runs_what_its_page_says_it_makes(name):
    diagnosis = SimpleNamespace(to_try=(), prescriptions=(prescribed(name),), step_ns=20.0 * MS, queue=object())
    diffs = [name] if CHANGES[name].edits_expressions else []
    is_run = bool(candidates(diagnosis, (), edits=True, diffs=diffs))
    assert is_run == (trial_method(name) != "by hand")
    if is_run:
        check_ids([name])
    else:
        with pytest.raises(UsageError, match="by hand"):
            check_ids([name])


@pytest.mark.parametrize("method", HOW_TRIED)
def test_the_report_says_it_of_each_change(forms, method):
    name = next(name for name in CHANGES if trial_method(name) == method)
    assert f"Trial {HOW_TRIED[method]}." in report(forms, [name])


def test_the_report_offers_no_trial_of_what_is_made_by_hand(forms):
    makes, author = "load-in-workers", "vectorise-loop"
    assert "Made by hand, so not among them: vectorise-loop." in report(forms, [makes, author])
    assert "so not among them" not in report(forms, [makes])
    alone = report(forms, [author])
    assert "all of them are made by hand" in alone
    assert "To measure your own edit of the script: diagnose prove --against EDITED.py" in alone
    assert "To measure your own edit" not in report(forms, [makes])
