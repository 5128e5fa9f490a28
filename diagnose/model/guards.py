"""What torch.compile's guards check, by the words of torch."""

from __future__ import annotations

import re

_CHECKS = {
    "size": re.compile(r"(size|stride) mismatch|\.size\(\)|\.shape\b"),
    "object": re.compile(r"___check_(type|obj)_id|^\S+ is "),
    "flag": re.compile(r"_parameters\b.* requires_grad mismatch"),
    "number": re.compile(r"== -?\d"),
}


def checked_by(guard: str) -> str:
    """Return what a guard checks: a size, an object, whether a parameter needs gradients ("flag"), a number, or "other"."""
    return next((kind for kind, words in _CHECKS.items() if words.search(guard)), "other")
