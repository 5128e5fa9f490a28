"""Patch of dropout on a CPU: masks of 16-bit numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["fast_dropout"]


def fast_dropout(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Put the bundled function in the place of `F.dropout`, which `nn.Dropout` calls."""
    from torch.nn import functional

    from diagnose.kernels.dropout import fast_dropout as bundled

    @functools.wraps(bundled)
    def dropout(*args: Any, **kwargs: Any) -> Any:  # those of F.dropout
        log.did("F.dropout: masks of 16-bit numbers")
        return bundled(*args, **kwargs)

    return replace_attribute(functional, "dropout", dropout)
