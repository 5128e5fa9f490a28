"""What a script raised, as a part of a sentence."""

from __future__ import annotations

__all__ = ["error_text"]


def error_text(error: BaseException) -> str:
    """Return the exception's name and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
