"""The old name of ``diagnose.kernels.gc_schedule``, kept for one release."""

import warnings

from diagnose.kernels.gc_schedule import CollectionSchedule, scheduled_gc

__all__ = ["CollectionSchedule", "scheduled_gc"]

warnings.warn(
    "diagnose.kernels.garbage is now diagnose.kernels.gc_schedule; the old name goes with the next release.",
    DeprecationWarning,
    stacklevel=2,
)
