"""Patch of dropout on a CPU: masks of 16-bit numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["fast_dropout"]


def fast_dropout(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Put the bundled functions in the place of torch's, which modules and libraries call."""
    from diagnose.kernels import dropout

    made = dropout._mask

    def mask(*args: Any) -> Any:  # the bundled function's own
        log.did("dropout: masks of 16-bit numbers")
        return made(*args)

    undo_each = [dropout.use_fast_dropout(), replace_attribute(dropout, "_mask", mask)]

    def undo() -> None:
        for one in undo_each:
            one()

    return undo
