"""Fourier transforms: lengths with kernels, and the operations of lengths without."""

import pytest

from diagnose.perf_model.transforms import (
    Transform,
    factors,
    fast_length,
    lower_fast_length,
    product_words,
    transform_of,
)


@pytest.mark.parametrize(
    ("n", "fast", "lower"), [(20479, 20480, 20160), (1021, 1024, 1008), (7, 8, 0), (1024, 1024, 1024)]
)
def test_fast_lengths_are_multiples_of_eight(n, fast, lower):
    assert (fast_length(n), lower_fast_length(n)) == (fast, lower)


def test_no_fast_length_is_passed_over():
    fast = [n for n in range(8, 3008, 8) if factors(n)[-1] <= 7]
    for n in range(1, 2900):
        assert fast_length(n) == min(each for each in fast if each >= n)
        assert lower_fast_length(n) == max((each for each in fast if each <= n), default=0)


@pytest.mark.parametrize(("n", "found"), [(1, ()), (2**31 - 1, (2**31 - 1,)), (1984, (2, 2, 2, 2, 2, 2, 31))])
def test_factors(n, found):
    assert factors(n) == found


def test_product_in_words():
    assert (product_words(20480), product_words(31)) == ("2^12 x 5", "31")


def test_operations_of_two_dimensions_count_by_their_logarithms():
    """128 rows of 127 real points: 7 doublings at 8 times the operations, and 7 at one."""
    assert Transform((128, 127), is_real=True, is_inverse=False).kept == pytest.approx(2 / 9, rel=0.01)
    assert Transform((128, 128), is_real=True, is_inverse=False).kept == 1
    assert Transform((1,), is_real=False, is_inverse=False).kept == 1


@pytest.mark.parametrize(
    ("name", "values", "lengths"),
    [
        ("aten::_fft_r2c", '["", "[1, 2]", "0", "True"]', (30, 31)),
        ("aten::_fft_c2c", '["", "[0]", "0", "True"]', (4,)),
        ("aten::_fft_c2r", '["", "[1, 2]", "2", "61"]', (30, 61)),  # the last is not that of the spectrum
        ("aten::_fft_c2r", '["", "[2]", "2", ""]', None),
        ("aten::_fft_r2c", '["", "[3]", "0", "True"]', None),
        ("aten::_fft_r2c", '["", "[]", "0", "True"]', None),
        ("aten::_fft_r2c", "", None),
    ],
)
def test_lengths_in_the_inputs(name, values, lengths):
    found = transform_of(name, "[[4, 30, 31], [], [], []]", '["float", "ScalarList", "Scalar", "Scalar"]', values)
    assert (found.lengths if found is not None else None) == lengths
