"""How many times faster a step can become, in words."""

from __future__ import annotations

import math

from diagnose.reports.language import tr

__all__ = ["factor_range", "factor_words"]


def factor_words(factor: tuple[float, float, float]) -> str:
    """Return "2.3 × (1.9 to 2.6 ×)", "8.7 × (4.4 × or more)" where nothing limits it, "1.1 ×" without a range."""
    low, middle, high = factor
    span = "" if f"{low:.1f}" == f"{high:.1f}" else f" ({factor_range(factor)})"
    return f"{middle:.1f} ×{span}"


def factor_range(factor: tuple[float, float, float]) -> str:
    """Return "1.9 to 2.6 ×", "4.4 × or more" where nothing limits it."""
    low, _, high = factor
    if math.isinf(high):
        return tr("{low} × or more", low=f"{low:.1f}")
    return tr("{low} to {high} ×", low=f"{low:.1f}", high=f"{high:.1f}")
