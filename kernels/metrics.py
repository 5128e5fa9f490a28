"""The old name of ``diagnose.kernels.deferred_metrics``, deprecated (docs/json.md)."""

import warnings

from diagnose.kernels.deferred_metrics import DeferredMetrics, Value

__all__ = ["DeferredMetrics", "Value"]

warnings.warn(
    "diagnose.kernels.metrics is now diagnose.kernels.deferred_metrics; "
    "the old name goes after two minor releases and half a year.",
    DeprecationWarning,
    stacklevel=2,
)
