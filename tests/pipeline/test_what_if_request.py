"""How scales are written."""

import pytest

from diagnose.errors import UsageError
from diagnose.pipeline.what_if import parse_scale


@pytest.mark.parametrize("text", ["gemm", "=0.5", "gemm=fast", "gemm=-1", "(=1", "gemm=inf", "gemm=nan", "gemm=1e300"])
def test_a_scale_that_is_none(text):
    with pytest.raises(UsageError, match="PATTERN=FACTOR"):
        parse_scale(text)


def test_a_pattern_may_hold_an_equals_sign():
    assert parse_scale("a=b=0.5") == ("a=b", 0.5)


def test_a_kernel_pattern_may_say_so():
    assert parse_scale("kernel~gemm=0.5") == ("gemm", 0.5)
