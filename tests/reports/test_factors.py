"""How many times faster a step becomes, in words."""

import math

import pytest

from diagnose.reports.language import language
from diagnose.reports.saving_words import factor_range, factor_words


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ((1.9, 2.3, 2.6), "2.3 × (1.9 to 2.6 ×)"),
        ((1.1, 1.1, 1.1), "1.1 ×"),
        ((1.11, 1.12, 1.14), "1.1 ×"),
        ((1.0, 2.0, math.inf), "2.0 × (1.0 × or more)"),
    ],
)
def test_a_factor_has_its_range_if_it_has_one(factor, words):
    assert factor_words(factor) == words


def test_the_range_alone_is_in_the_language_that_is_shown():
    assert factor_range((1.9, 2.3, 2.6)) == "1.9 to 2.6 ×"
    with language("zh"):
        assert factor_range((1.9, 2.3, 2.6)) == "1.9 至 2.6 ×"
