"""The old name of ``diagnose.kernels.gc_schedule``, deprecated (docs/json.md)."""

import warnings

from diagnose.kernels.gc_schedule import CollectionSchedule, scheduled_gc

__all__ = ["CollectionSchedule", "scheduled_gc"]

warnings.warn(
    "diagnose.kernels.garbage is now diagnose.kernels.gc_schedule; "
    "the old name goes after two minor releases and half a year.",
    DeprecationWarning,
    stacklevel=2,
)
