"""The old name of ``diagnose.kernels.background_loader``, kept for one release."""

import warnings

from diagnose.kernels.background_loader import BackgroundLoader

__all__ = ["BackgroundLoader"]

warnings.warn(
    "diagnose.kernels.background is now diagnose.kernels.background_loader; the old name goes with the next release.",
    DeprecationWarning,
    stacklevel=2,
)
