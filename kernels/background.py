"""The old name of ``diagnose.kernels.background_loader``, deprecated (docs/json.md)."""

import warnings

from diagnose.kernels.background_loader import BackgroundLoader

__all__ = ["BackgroundLoader"]

warnings.warn(
    "diagnose.kernels.background is now diagnose.kernels.background_loader; "
    "the old name goes after two minor releases and half a year.",
    DeprecationWarning,
    stacklevel=2,
)
