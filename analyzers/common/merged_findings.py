"""One finding of what a rule sees on both sides: idle time of the device, and kernels that need not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding

__all__ = ["with_kernels"]


def with_kernels(idle: Sequence[Finding], busy: Sequence[Finding], tasks: Rows) -> list[Finding]:
    """Return the finding of idle time with the kernels' time and evidence, or the one of the two that there is."""
    if not idle or not busy:
        return [*idle, *busy]
    return [
        replace(
            idle[0],
            lost_ns=idle[0].lost_ns + busy[0].lost_ns,
            total_ns=idle[0].total_ns + busy[0].total_ns,
            evidence=tuple(dict.fromkeys((*idle[0].evidence, *busy[0].evidence))),
            tasks=tasks,
        )
    ]
