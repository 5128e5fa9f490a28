"""What torch.compile's guards check, by the words of torch."""

from __future__ import annotations

import re

CHECKS = {  # a flag is requires_grad of a parameter, a length that of a list
    "size": re.compile(r"(size|stride) mismatch|\.size\(\)|\.shape\b"),
    "object": re.compile(r"___check_(type|obj)_id|^\S+ is "),
    "flag": re.compile(r"_parameters\b.* requires_grad mismatch"),
    "length": re.compile(r"^len\("),
    "number": re.compile(r"== -?\d"),
}


def checked_by(guard: str) -> str:
    """Return what a guard checks: a key of ``CHECKS``, or "other" for anything else."""
    return next((kind for kind, words in CHECKS.items() if words.search(guard)), "other")
