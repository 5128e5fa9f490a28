"""The list of findings: what the step saves without each, and its change."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer, finding_rows
from diagnose.model.words import english

MS = 1_000_000


def first_row(d, **fields):
    """Return the row of the first finding, with other numbers; the step takes 20 ms."""
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


def test_a_recording_to_be_made_again_has_neither_savings_nor_changes(forms):
    d = forms["low_trust"]
    for row in finding_rows(d, answer(d).each):
        assert (row.saves, row.share, row.fix, row.alternative, row.refuted, row.also) == (
            None,
            0.0,
            None,
            None,
            (),
            (),
        )
    good = replace(d, prescriptions=d.prescriptions[1:])
    row = finding_rows(good, answer(good).each)[1]
    assert (english(row.saves), row.share) == ("6.00 ms (30.0 % of the step)", pytest.approx(0.3))
    assert row.fix is not None
