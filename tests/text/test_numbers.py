"""Words for numbers and for lists."""

import pytest

from diagnose.text.numbers import enumeration


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_an_enumeration_has_one_and(words, text):
    assert enumeration(words) == text
