"""How many times faster a step can become, in words."""

from __future__ import annotations

import math

from diagnose.reports.language import tr

__all__ = ["factor_range", "factor_words"]

MAX_HIGH = 3.0  # of the predicted factor: an end beyond it says no more than that nothing known limits it


def factor_words(factor: tuple[float, float, float]) -> str:
    """Return "2.3 × (1.9 to 2.6 ×)", "8.7 × (4.4 × or more)" where nothing limits it, "1.1 ×" without a range."""
    low, middle, high = factor
    if not _is_limited(factor):
        return f"{middle:.1f} × ({factor_range(factor)})"
    return f"{middle:.1f} ×" + (f" ({factor_range(factor)})" if f"{low:.1f}" != f"{high:.1f}" else "")


def factor_range(factor: tuple[float, float, float]) -> str:
    """Return "1.9 to 2.6 ×", "4.4 × or more" where nothing limits it."""
    low, _, high = factor
    if not _is_limited(factor):
        return tr("{low} × or more", low=f"{low:.1f}")
    return tr("{low} to {high} ×", low=f"{low:.1f}", high=f"{high:.1f}")


def _is_limited(factor: tuple[float, float, float]) -> bool:
    """Return whether the upper end is near enough to the predicted factor to be of use."""
    _, middle, high = factor
    return math.isfinite(high) and high <= MAX_HIGH * middle
