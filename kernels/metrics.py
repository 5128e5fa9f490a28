"""The old name of ``diagnose.kernels.deferred_metrics``, kept for one release."""

import warnings

from diagnose.kernels.deferred_metrics import DeferredMetrics, Value

__all__ = ["DeferredMetrics", "Value"]

warnings.warn(
    "diagnose.kernels.metrics is now diagnose.kernels.deferred_metrics; the old name goes with the next release.",
    DeprecationWarning,
    stacklevel=2,
)
