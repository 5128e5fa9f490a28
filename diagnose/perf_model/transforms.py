"""Fourier transforms: which lengths libraries have no kernels for, and how much more operations these take."""

from __future__ import annotations

import re
from functools import lru_cache
from math import log2
from typing import NamedTuple

from diagnose.perf_model.op_inputs import inputs

TRANSFORMS = re.compile(r"^aten::_fft_(r2c|c2r|c2c)$")
MAX_KERNEL_FACTOR = 13  # libraries have kernels for prime factors up to 11 (pocketfft), 13 (MKL), 17 (rocFFT)
_MULTIPLE = 8  # a real transform of an even length is one of half the length; odd products of 3, 5, 7 have no such form
CONVOLVED = 4.0  # Bluestein: two transforms of twice the length, or of more, in the place of one


class Transform(NamedTuple):
    """One call of a transform: its lengths, one for each dimension."""

    lengths: tuple[int, ...]
    is_real: bool  # on one side: in the last of the dimensions
    is_inverse: bool  # as its name shows it: from complex to real

    @property
    def slowdown(self) -> float:
        """Return how many times the operations of a fast length its slowest length takes, if both are complex."""
        return max(_slowdown(n) for n in self.lengths)

    @property
    def kept(self) -> float:
        """Return the operations with fast lengths, as a share of those with the lengths as they are."""
        last = len(self.lengths) - 1
        slowdowns = [_slowdown(n, is_real=self.is_real and i == last) for i, n in enumerate(self.lengths)]
        each = [
            (log2(max(n, 2)), by, fast_length(n) / n if by > 1 else 1.0)
            for n, by in zip(self.lengths, slowdowns, strict=True)
        ]
        now = sum(work * by for work, by, _ in each)
        return min(sum(work * more for work, _, more in each) / now, 1.0) if now else 1.0


def _slowdown(length: int, *, is_real: bool = False) -> float:
    """Return how many times the operations of a fast length one takes: with its factors directly, or by Bluestein.

    A real transform of an odd length is computed as a complex one where there is no kernel for it.
    """
    direct = sum(p for p in factors(length) if p > MAX_KERNEL_FACTOR)
    if not direct:
        return 1.0
    # A factor that is summed up directly takes 4 operations per element and input: a complex product, shared by two
    # outputs. A transform by factors of 2 takes 5 per element and doubling.
    return min(1 + 4 * direct / (5 * log2(length)), CONVOLVED) * (2 if is_real and length % 2 else 1)


@lru_cache(maxsize=4096)
def factors(number: int) -> tuple[int, ...]:
    """Return the prime factors, ascending."""
    found, p = [], 2
    while p * p <= number:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    return (*found, number) if number > 1 else tuple(found)


def fast_length(at_least: int) -> int:
    """Return the next product of 2, 3, 5 and 7 that is a multiple of 8."""
    return min(_rounded(odd, at_least) for odd in _odd_products(2 * at_least))


def lower_fast_length(at_most: int) -> int:
    """Return the last such product, 0 below 8."""
    each = (_rounded(odd, at_most + 1) // 2 for odd in _odd_products(at_most))
    return max((n for n in each if n % _MULTIPLE == 0), default=0)


def _rounded(odd: int, at_least: int) -> int:
    """Return the first product of an odd number and a power of two that is long enough."""
    number = odd * _MULTIPLE
    while number < at_least:
        number *= 2
    return number


@lru_cache(maxsize=512)
def _odd_products(at_most: int) -> tuple[int, ...]:
    found = [1]
    for p in (3, 5, 7):
        found = [n * p**k for n in found for k in range(at_most.bit_length()) if n * p**k <= at_most]
    return tuple(found)


def product_words(number: int) -> str:
    """Return a number as the product of its prime factors: "2^12 x 5"."""
    each = factors(number)
    return " x ".join(f"{p}^{num}" if (num := each.count(p)) > 1 else str(p) for p in dict.fromkeys(each))


def transform_of(name: str, shapes: str, types: str, values: str) -> Transform | None:
    """Return the transform that an operator computes, None where its inputs do not show that."""
    given = inputs(shapes, types, values)
    try:
        if given is None:
            return None
        shape = given.tensor(0).shape
        lengths = [shape[dim] for dim in given.numbers(1)]
        if name.endswith("c2r"):
            (lengths[-1],) = given.numbers(3)
    except (ValueError, IndexError):
        return None
    # Beyond it a number in a file is no length.
    if not lengths or not all(0 < n <= (2**31) for n in lengths):
        return None
    return Transform(tuple(lengths), not name.endswith("c2c"), name.endswith("c2r"))
