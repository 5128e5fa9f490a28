"""The patch that lets the CPU take subnormal numbers for 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo

__all__ = ["flush_subnormals"]


def flush_subnormals(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Set the mode before the script's first operator, in the thread from which torch's own inherit it."""
    import torch

    if torch.set_flush_denormal(True):
        log.did("torch.set_flush_denormal(True)")
    else:
        log.left("a CPU without that mode")

    def undo() -> None:
        torch.set_flush_denormal(False)

    return undo
