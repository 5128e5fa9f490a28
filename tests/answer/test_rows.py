"""The list of findings: what the step saves without each, what it takes if that is another time, and its change."""

from dataclasses import replace

import pytest

from diagnose.answer.rows import finding_rows
from diagnose.answer.screen import answer
from diagnose.model.words import english

MS = 1_000_000


def first_row(d, **fields):
    """Return what the first finding saves and takes, with other numbers; the step takes 20 ms."""
    changed = replace(d, findings=(replace(d.findings[0], **fields), *d.findings[1:]))
    return finding_rows(changed, answer(changed).each)[0]


@pytest.mark.parametrize(
    ("fields", "saves", "share"),
    [
        ({"worth_ns": 6 * MS}, "6.00 ms (30.0 % of the step)", 0.3),
        ({"worth_ns": 60 * MS}, "60.0 ms (100.0 % of the step)", 1.0),
        ({"worth_ns": 6 * MS, "share": 0.4}, "6.00 ms per step (40.0 % of the run)", 0.4),
        ({"worth_ns": 6 * MS, "share": 1.2}, "6.00 ms per step (100.0 % of the run)", 1.0),
        ({"worth_ns": 0.0}, "no saving known", 0.0),
        ({"worth_ns": 0.0, "share": 0.4}, "no saving known", 0.0),
    ],
)
def test_a_finding_states_what_the_step_saves_without_it(forms, fields, saves, share):
    row = first_row(forms["gaps"], **fields)
    assert (english(row.saves), row.share) == (saves, pytest.approx(share))


def test_without_marked_steps_it_is_of_the_recording(forms):
    d = forms["gaps"]
    d = replace(d, source=replace(d.source, found_steps_by="none"))
    assert english(first_row(d).saves) == "6.00 ms (30.0 % of the recording)"
    assert english(first_row(replace(d, step_ns=0.0)).saves) == "6.00 ms"


@pytest.mark.parametrize(
    ("lost", "worth", "relief", "cost"),  # ms of a step of 20 ms
    [
        (6.0, 6.0, 6.0, None),
        (6.5, 6.0, 6.0, None),  # less than a tenth of what it saves apart
        (1.1, 1.0, 1.0, None),  # less than a hundredth of the step apart
        (6.7, 6.0, 6.0, "takes 6.70 ms; without it other work fills 700 µs of that"),
        (6.0, 8.0, 8.0, "takes 6.00 ms; without it later work starts 2.00 ms sooner"),
        (0.0, 8.0, 8.0, "runs under the device's own work; without it later work starts sooner"),
        (6.0, 0.0, 0.1, "takes 6.00 ms; without it other work takes as long"),
        (6.0, 0.0, 0.2, "takes 6.00 ms"),
        (6.0, 0.0, None, "takes 6.00 ms"),
    ],
)
def test_what_it_takes_is_stated_if_that_clearly_differs(forms, lost, worth, relief, cost):
    relief_ns = None if relief is None else relief * MS
    row = first_row(forms["gaps"], lost_ns=lost * MS, worth_ns=worth * MS, relief_ns=relief_ns)
    assert (None if row.cost is None else english(row.cost)) == cost


def test_of_the_run_only_the_share_is_stated(forms):
    assert first_row(forms["gaps"], lost_ns=6 * MS, worth_ns=2 * MS, share=0.3).cost is None


def test_a_recording_to_be_made_again_has_shares_of_itself_and_no_changes(forms):
    d = forms["low_trust"]
    rows = finding_rows(d, answer(d).each)
    assert [(english(row.saves), row.share) for row in rows[:2]] == [
        ("75.0 % of the recording", 0.75), ("30.0 % of the recording", 0.3),
    ]  # fmt: skip
    assert all(
        (row.cost, row.fix, row.alternative, row.refuted, row.also) == (None, None, None, (), ()) for row in rows
    )
    good = replace(d, prescriptions=d.prescriptions[1:])
    assert finding_rows(good, answer(good).each)[1].fix is not None
