"""The summary: the verdict, the headline and the first change, as JSON and first screen have them."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer, with_words
from diagnose.model.words import english


def test_three_lines(forms):
    d = with_words(forms["gaps"])
    a = answer(d)
    first = a.cards[0]
    assert d.headline == english(a.headline)
    assert d.summary == (
        "GPU stalls: the CPU runs ahead of the GPU except for a few long gaps",
        d.headline,
        f"First change: {first.prescription.title} (saves 5.00 ms)",
    )
    assert first.prediction.saves_ns == pytest.approx(5e6)


def test_without_a_prediction_the_change_has_no_number(forms):
    d = forms["gaps"]
    (*_, last) = with_words(replace(d, waterfall=None, prescriptions=unpredicted(d))).summary
    assert last.startswith("First change: ")
    assert "saves" not in last


def unpredicted(d):
    return tuple(replace(p, predicted_step_ns=None) for p in d.prescriptions)


def test_little_to_gain_has_no_third_line(forms):
    assert len(with_words(forms["healthy"]).summary) == 2
